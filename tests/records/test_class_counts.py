"""How often classes occur, and which one is rare."""

import pytest

from stillbox.records.class_counts import (
    ClassCount,
    ClassCounter,
    class_table,
    describe_rare,
    rare_class,
    short_table,
)


def counts(*boxes):
    return [ClassCount(f"class {n}", number, number) for n, number in enumerate(boxes)]


@pytest.mark.parametrize(
    ("boxes", "rarest"),
    [
        ((9, 1000, 91), 0),  # below a tenth of 91
        ((10, 1000, 91), None),
        # Without a box there is nothing to repeat; the median is then between 1000 and 9.
        ((9, 1000, 0), 0),
        ((0, 1000, 500), None),
        ((7,), None),
        ((), None),
    ],
)
def test_a_class_is_rare_below_a_tenth_of_the_median(boxes, rarest):
    rare = rare_class(counts(*boxes))
    assert rare == (None if rarest is None else counts(*boxes)[rarest])
    assert bool(describe_rare(counts(*boxes))) == (rare is not None)


def test_boxes_and_images_are_counted_and_extrapolated():
    counter = ClassCounter()
    for class_ids in ([1, 1, 4], [1], []):
        counter.add(class_ids)
    names = {4: "star", 1: "disc", 2: "ring"}
    of_all = [ClassCount("disc", 3, 2), ClassCount("ring", 0, 0), ClassCount("star", 1, 1)]
    assert list(counter.counts(names)) == of_all
    assert counter.counts(names, 2.5)[0] == ClassCount("disc", 8, 5)


def test_a_table_has_shares_and_its_short_form_both_ends():
    head, first, *_ = class_table([ClassCount("a\nb", 30, 3), ClassCount("c", 10, 2)])
    assert head.split() == ["boxes", "images", "share", "class"]
    assert first.split() == ["30", "3", "75.0", "%", "a\\nb"]
    assert list(short_table(counts(5, 9)))[1].endswith("class 1")
    lines = list(short_table(counts(*range(1, 31))))
    assert len(lines) == 1 + 10 + 1 + 10
    assert lines[11].split() == ["...", "10", "more"]
    assert (lines[1].split()[0], lines[-1].split()[0]) == ("30", "1")
