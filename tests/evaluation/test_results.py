"""Ids of images, of any length."""

from stillbox.evaluation.coco import _number
from stillbox.evaluation.results import _id_order
from stillbox.numerals import digits


def test_ids_of_any_length_are_ordered_and_written():
    ids = ["a", "9" * 5000, "12", "007", "1" + "0" * 25, "\u0663"]
    assert sorted(ids, key=_id_order) == ["007", "12", ids[4], ids[1], "a", "\u0663"]
    assert [digits(image_id) for image_id in ids] == [None, None, 12, 7, 10**25, None]
    assert [_number(image_id) for image_id in ids] == ["a", ids[1], 12, "007", 10**25, "\u0663"]
