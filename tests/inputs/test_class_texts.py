"""Label maps of other records, seen before the first batch."""

import pytest

from stillbox.errors import UserError
from stillbox.inputs.class_texts import reject_unrelated_label_map
from stillbox.records.label_map import LabelMap
from stillbox.records.label_map_text import LabelMapItem
from stillbox.records.source import ExampleSource

SHAPES = ("disc", "ring", "square", "triangle", "star", "cross")


def check(scenes, label_map, *, use_display_name=False):
    source = ExampleSource([f"{scenes}/train.record-*"], label_map)
    reject_unrelated_label_map(source, label_map, use_display_name=use_display_name)


def test_the_right_label_map_and_one_of_some_classes_pass(scenes):
    check(scenes, LabelMap.from_names(SHAPES))
    check(scenes, LabelMap.from_names(SHAPES[1:2]))


def test_a_label_map_without_any_of_the_classes_is_refused_with_both_sides(scenes):
    with pytest.raises(UserError, match="has none of the classes of 27 boxes") as caught:
        check(scenes, LabelMap.from_names(["cat", "dog"]))
    assert "'ring'" in str(caught.value)
    assert "'cat', 'dog'" in str(caught.value)
    assert "give the label map that was written together" in caught.value.fix


def test_display_names_that_would_match_are_the_remedy(scenes):
    coded = LabelMap(
        tuple(
            LabelMapItem(index, f"/m/{index}", shape) for index, shape in enumerate(SHAPES, start=1)
        )
    )
    with pytest.raises(UserError) as caught:
        check(scenes, coded)
    assert caught.value.fix == "set use_display_name to true"
