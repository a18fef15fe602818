import hashlib

import numpy as np
import pytest

from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError
from stillbox.records.tf_example import parse_example, serialize_example
from stillbox.records.wire import parse_features, serialize_features
from tests.records.builders import CAT_DOG, image_bytes, make_example


def two_boxes(**values):
    return make_example([[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]], [1, 2], **values)


def changed(**features):
    """A record of two boxes with some features replaced (`bbox__xmin` for `bbox/xmin`), or taken
    away where the value is None."""
    stored = parse_features(serialize_example(two_boxes(), CAT_DOG))
    for name, value in features.items():
        key = f"image/object/{name.replace('__', '/')}"
        if value is None:
            del stored[key]
        else:
            stored[key] = value
    return serialize_features(stored)


def assert_equal(left, right):
    for name, value in vars(left).items():
        np.testing.assert_array_equal(getattr(right, name), value, err_msg=name)


@pytest.mark.parametrize("label_map", [None, CAT_DOG])
def test_an_example_comes_back_as_it_was(label_map):
    example = two_boxes(
        weights=np.array([0, 0.5], np.float32),
        is_crowd=np.array([True, False]),
        difficult=np.array([False, True]),
        truncated=np.array([True, True]),
        area=np.array([3.5, np.nan], np.float32),
    )
    parsed = parse_example(serialize_example(example, label_map), label_map)
    assert_equal(example, parsed.example)
    assert (parsed.unknown, parsed.wrong_lists, parsed.disagreeing) == ({}, (), ())


def test_an_image_without_boxes_comes_back_as_it_was():
    example = make_example([], [])
    assert_equal(example, parse_example(serialize_example(example, CAT_DOG), CAT_DOG).example)


def test_a_record_has_the_keys_of_other_readers():
    stored = parse_features(serialize_example(two_boxes(), CAT_DOG))
    assert stored["image/format"] == [b"jpeg"]
    assert stored["image/object/class/text"] == [b"cat", b"dog"]
    assert stored["image/object/class/label"].tolist() == [1, 2]
    assert stored["image/source_id"] == [b"7"]
    assert stored["image/filename"] == [b"7.jpg"]
    digest = hashlib.sha256(image_bytes()).hexdigest().encode()
    assert stored["image/key/sha256"] == [digest]
    assert "image/object/area" not in stored
    png = serialize_example(two_boxes(encoded=image_bytes(kind="PNG")))
    assert parse_features(png)["image/format"] == [b"png"]


def test_columns_of_defaults_are_left_out():
    stored = parse_features(serialize_example(two_boxes(), CAT_DOG))
    assert "image/object/difficult" not in stored
    assert "image/object/truncated" not in stored
    marked = two_boxes(difficult=np.array([False, True]))
    stored = parse_features(serialize_example(marked, CAT_DOG))
    assert stored["image/object/difficult"].tolist() == [0, 1]
    assert "image/object/truncated" not in stored


def test_absent_columns_have_their_defaults():
    example = parse_example(changed(is_crowd=None), CAT_DOG).example
    assert example.weights.tolist() == [1, 1]
    for marks in (example.is_crowd, example.difficult, example.truncated):
        assert marks.tolist() == [False, False]
    assert np.isnan(example.area).all()


def test_text_has_precedence_over_label_and_a_difference_is_noted():
    parsed = parse_example(changed(class__label=np.array([2, 2])), CAT_DOG)
    assert parsed.example.class_ids.tolist() == [1, 2]
    assert parsed.disagreeing == ("box 0: text 'cat' is id 1, label is 2",)


def test_label_replaces_an_absent_or_empty_text():
    assert parse_example(changed(class__text=None), CAT_DOG).example.class_ids.tolist() == [1, 2]
    data = changed(class__text=[b"", b"dog"])
    assert parse_example(data, CAT_DOG).example.class_ids.tolist() == [1, 2]


def test_an_unknown_text_is_not_replaced_by_its_label():
    parsed = parse_example(changed(class__text=[b"cow", b"dog"]), CAT_DOG)
    assert parsed.example.class_ids.tolist() == [0, 2]
    assert parsed.unknown == {0: "'cow'"}


@pytest.mark.parametrize("label", [3, 0, -1, 2**40])
def test_an_id_outside_the_label_map_is_unknown(label):
    data = changed(class__text=None, class__label=np.array([label, 2]))
    assert parse_example(data, CAT_DOG).unknown == {0: f"id {label}"}


def test_without_a_label_map_labels_are_taken_as_they_are():
    data = changed(class__label=np.array([90, 0]))
    parsed = parse_example(data)
    assert parsed.example.class_ids.tolist() == [90, 0]
    assert parsed.unknown == {1: "id 0"}


def test_texts_alone_need_a_label_map():
    with pytest.raises(BadRecordError, match=r"class texts need a label map: .*b'cat'"):
        parse_example(changed(class__label=None))


def test_display_names_are_matched_on_request():
    text = "item { id: 5 name: '/m/1' display_name: 'cat' } item { id: 9 name: 'cat' }"
    label_map = LabelMap.from_text(text)
    data = changed(class__text=[b"cat", b"cat"], class__label=None)
    for use_display_name, expected in ((False, 9), (True, 5)):
        parsed = parse_example(data, label_map, use_display_name=use_display_name)
        assert parsed.example.class_ids.tolist() == [expected] * 2


def test_the_image_id_falls_back_to_file_name_and_place():
    for values, expected in (
        ({"image_id": "12", "filename": "a.jpg"}, "12"),
        ({"image_id": "", "filename": "a.jpg"}, "a.jpg"),
        ({"image_id": "", "filename": ""}, "x:3"),
    ):
        data = serialize_example(two_boxes(**values))
        assert parse_example(data, fallback_id="x:3").example.image_id == expected


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (
            {"bbox__xmin": np.zeros(1, np.float32)},
            "do not fit together: lengths: ymin 2, xmin 1, ymax 2",
        ),
        ({"bbox__xmin": None}, "do not fit together: lengths: ymin 2, xmin 0, ymax 2"),
        ({"class__text": [b"cat"]}, "classes and boxes do not fit together: 2 boxes, 1 class/text"),
        ({"class__label": np.array([1, 1, 1])}, "do not fit together: 2 boxes, 3 class/label"),
        ({"class__label": None, "class__text": None}, "boxes without a class: 2 boxes"),
        ({"bbox__xmin": np.array([1, 2])}, "wrong type: image/object/bbox/xmin holds int64"),
        ({"class__text": np.array([1, 2])}, "wrong type: image/object/class/text holds int64"),
        ({"is_crowd": np.zeros(2, np.float32)}, "wrong type: image/object/is_crowd holds float32"),
    ],
)
def test_lists_that_do_not_fit_make_the_record_unusable(features, words):
    with pytest.raises(BadRecordError, match=words):
        parse_example(changed(**features), CAT_DOG)


def test_an_optional_column_of_wrong_length_is_left_out_and_named():
    parsed = parse_example(changed(is_crowd=np.array([1])), CAT_DOG)
    assert parsed.wrong_lists == ("is_crowd has 1 value for 2 boxes",)
    assert not parsed.example.is_crowd.any()


def test_a_record_without_an_image_names_what_it_has():
    with pytest.raises(BadRecordError, match="no image in the record: it has image/height"):
        parse_example(serialize_features({"image/height": np.array([3])}))
    with pytest.raises(BadRecordError, match="it has no features"):
        parse_example(b"")


def test_unused_keys_are_ignored():
    data = changed(group_of=np.array([1]), mask=[b"x"], view=[b"a", b"b", b"c"])
    assert parse_example(data, CAT_DOG).example.class_ids.tolist() == [1, 2]
