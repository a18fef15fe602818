import pytest

from stillbox.errors import UserError
from stillbox.evaluation.agreement import check_agreement
from stillbox.records.class_slots import ClassSlots
from tests.evaluation.builders import by_id, truth

BOX = [0, 0, 10, 10]
NAMES = {1: "cat", 3: "dog"}


def test_a_matching_set_gives_no_warning():
    assert check_agreement([truth("a", [BOX, BOX], [1, 3])], NAMES, slots=by_id(3)) == ()


def test_everything_that_disagrees_is_listed_at_once():
    with pytest.raises(UserError) as caught:
        check_agreement(
            [truth("a"), truth("b", [BOX, BOX, BOX], [2, 1, 2])],
            NAMES,
            slots=by_id(2),
            other_names={1: "dog", 3: "dog", 9: "horse"},
        )
    message = str(caught.value)
    assert "class id 2 of 2 boxes (first in image 'b')" in message
    assert "the model has 2 classes and can only find ids 1 to 2" in message
    assert "also has 3 (dog)" in message
    assert "class id 1 is 'cat' in the label map and 'dog' elsewhere" in message
    assert "fix:" in message


def test_id_0_is_the_background_and_nothing_else():
    check_agreement([truth("a", [BOX])], {0: "background", 1: "cat"}, slots=by_id(1))
    with pytest.raises(UserError, match=r"also has 0 \(dog\)"):
        check_agreement([truth("a", [BOX])], {0: "dog", 1: "cat"}, slots=by_id(1))


def test_long_lists_are_cut():
    boxes = [BOX] * 8
    with pytest.raises(UserError, match="and 3 more class ids like these"):
        check_agreement([truth("a", boxes, list(range(11, 19)))], NAMES, slots=by_id(3))


def test_more_classes_and_absent_classes_are_warnings():
    warnings = check_agreement([truth("a", [BOX], [1])], NAMES, slots=by_id(5))
    assert len(warnings) == 2
    assert "ids 4 to 5 is not scored" in warnings[0]
    assert "no ground truth of dog" in warnings[1]


def test_contiguous_slots_are_named_with_their_ids():
    slots = ClassSlots((1, 3))
    assert check_agreement([truth("a", [BOX, BOX], [1, 3])], NAMES, slots=slots) == ()
    # Three classes as well, but the third of them is 4 here and 3 there.
    with pytest.raises(UserError, match=r"only find ids 1 to 2, 4, but the label map also has 3"):
        check_agreement((), {1: "cat", 2: "cow", 3: "dog"}, slots=ClassSlots((1, 2, 4)))
