import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records.class_slots import ClassSlots, assign_slots, required_classes
from stillbox.records.label_map import LabelMap
from stillbox.records.label_map_text import LabelMapItem

# Out of order on purpose; 2 and 4 are gaps.
SHAPES = LabelMap((LabelMapItem(5, "star"), LabelMapItem(1, "disc"), LabelMapItem(3, "ring")), "m")


def indices_of(slots, *ids):
    return slots.index_of(np.array(ids, np.int32)).tolist()


def ids_of(slots, *indices):
    return slots.id_of(np.array(indices, np.int32)).tolist()


def test_by_id_an_index_is_one_less_and_gaps_are_slots():
    slots = assign_slots(SHAPES, 6, "label_map_id")
    assert slots.ids == (1, 2, 3, 4, 5, 6)
    assert indices_of(slots, 5, 1, 3) == [4, 0, 2]
    assert ids_of(slots, 4, 0, 2) == [5, 1, 3]


def test_contiguous_slots_follow_the_order_of_the_ids():
    slots = assign_slots(SHAPES, 3, "contiguous")
    assert slots.ids == (1, 3, 5)
    assert indices_of(slots, 5, 1, 3) == [2, 0, 1]
    assert ids_of(slots, 2, 0, 1) == [5, 1, 3]


def test_without_gaps_both_rules_are_the_same():
    names = LabelMap.from_names(["a", "b", "c"])
    assert assign_slots(names, 3, "contiguous") == assign_slots(names, 3, "label_map_id")


@pytest.mark.parametrize("rule", ["label_map_id", "contiguous"])
def test_an_id_without_a_slot_becomes_the_index_after_the_last(rule):
    # `assign_targets` gives that index a target of zeros; it must not be another class's.
    classes = required_classes(SHAPES, rule)
    assert indices_of(assign_slots(SHAPES, classes, rule), 0, 6, 90, -1) == [classes] * 4
    assert indices_of(ClassSlots((1, 3, 5)), 2, 4) == [3, 3]


def test_types_and_empty_lists():
    slots = ClassSlots((1, 3))
    none = np.zeros(0, np.int32)
    assert slots.index_of(none).dtype == np.int32
    assert slots.id_of(none).dtype == np.int64
    assert slots.index_of(none).shape == slots.id_of(none).shape == (0,)


@pytest.mark.parametrize(
    ("ids", "words"),
    [((1, 2, 3), "1 to 3"), ((7,), "7"), ((1, 2, 4, 6, 7), "1 to 2, 4, 6 to 7")],
)
def test_ids_in_words(ids, words):
    assert str(ClassSlots(ids)) == words


@pytest.mark.parametrize(
    ("rule", "classes", "what", "fix"),
    [
        ("label_map_id", 4, "id 5, the model has 4 classes", "set model.num_classes=5 (the"),
        ("contiguous", 4, "3 classes, the model 4,", "set model.num_classes=3 (the"),
        # The other rule would fit as it is.
        ("label_map_id", 3, "id 5, the model has 3 classes", "or set model.class_slots=contig"),
        ("contiguous", 5, "3 classes, the model 5,", "or set model.class_slots=label_map_id"),
    ],
)
def test_a_wrong_number_of_classes_is_refused_with_the_right_one(rule, classes, what, fix):
    with pytest.raises(UserError) as caught:
        assign_slots(SHAPES, classes, rule)
    assert caught.value.where == "m"
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.fix.endswith("or give the label map that belongs to the model")
    assert ("class_slots" in caught.value.fix) == ("class_slots" in fix)


def test_coco_has_80_contiguous_classes():
    # COCO's contiguous classes: 1-11 -> 1-11; 12-24 -> 13-25; then 27, 28, 31-44, 46-65, 67, 70,
    # 72-82, 84-90, counted with the background as 0.
    wanted = [*range(1, 12), *range(13, 26), 27, 28, *range(31, 45), *range(46, 66), 67, 70]
    wanted += [*range(72, 83), *range(84, 91)]
    coco = LabelMap.from_file("coco")
    slots = assign_slots(coco, 80, "contiguous")
    assert slots.ids == tuple(wanted)
    assert indices_of(slots, 1, 13, 90) == [0, 11, 79]
    assert required_classes(coco, "label_map_id") == 90
