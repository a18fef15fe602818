import hashlib

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from stillbox.records import example as rules
from stillbox.records.example import apply_box_policy
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError
from stillbox.records.tf_example import parse_example, serialize_example
from stillbox.records.wire import parse_features, serialize_features
from tests.records.builders import CAT_DOG, image_bytes, make_example


def tf_example_class():
    """The message classes of tensorflow/core/example, built from their description."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        entry = file.message_type.add(name=name)
        for number, (field, kind, label, type_name) in enumerate(fields, start=1):
            entry.field.add(
                name=field, number=number, type=kind, label=label, type_name=type_name or None
            )
        return entry

    single, many, inner = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED, kinds.TYPE_MESSAGE
    message("BytesList", ("value", kinds.TYPE_BYTES, many, ""))
    message("FloatList", ("value", kinds.TYPE_FLOAT, many, ""))
    message("Int64List", ("value", kinds.TYPE_INT64, many, ""))
    feature = message(
        "Feature",
        ("bytes_list", inner, single, ".t.BytesList"),
        ("float_list", inner, single, ".t.FloatList"),
        ("int64_list", inner, single, ".t.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", inner, many, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=single)
    entry.field.add(name="value", number=2, type=inner, label=single, type_name=".t.Feature")
    message("Example", ("features", inner, single, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


FEATURES = {
    "bytes": [b"\x00\xff", b"", b"x" * 200],
    "floats": np.array([0.0, -1.5, 3.4e38, np.inf], np.float32),
    "integers": np.array([0, 1, 127, 128, 2**62, -1, -(2**63)]),
    "none/bytes": [],
    "none/floats": np.zeros(0, np.float32),
    "none/integers": np.zeros(0, np.int64),
    "umlaut \N{LATIN SMALL LETTER U WITH DIAERESIS}": [b"key"],
}


def protobuf_bytes():
    message = tf_example_class()()
    for key, values in FEATURES.items():
        feature = message.features.feature[key]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
            feature.bytes_list.SetInParent()
        elif values.dtype == np.float32:
            feature.float_list.value.extend(values.tolist())
            feature.float_list.SetInParent()
        else:
            feature.int64_list.value.extend(values.tolist())
            feature.int64_list.SetInParent()
    return message.SerializeToString(deterministic=True)


def assert_same(parsed):
    assert set(parsed) == set(FEATURES)
    for key, values in FEATURES.items():
        np.testing.assert_array_equal(parsed[key], values)
        if len(values):
            assert isinstance(parsed[key], type(values)), key


def test_bytes_are_those_of_protobuf():
    assert serialize_features(FEATURES) == protobuf_bytes()
    assert_same(parse_features(protobuf_bytes()))
    message = tf_example_class().FromString(serialize_features(FEATURES))
    assert list(message.features.feature["integers"].int64_list.value) == list(FEATURES["integers"])


def test_numbers_need_not_be_packed():
    # FloatList { 1: 0.5, 1: packed [1.0] }: tag 0x0d is field 1 fixed32, 0x0a field 1 with length.
    floats = b"\x0d\x00\x00\x00\x3f" + b"\x0a\x04\x00\x00\x80\x3f"
    # Int64List { 1: 300 }: tag 0x08 is field 1 varint, 300 = 0xac 0x02
    integers = b"\x08\xac\x02"
    data = b""
    for key, field, content in ((b"f", 2, floats), (b"i", 3, integers)):
        feature = bytes([field << 3 | 2, len(content)]) + content
        entry = b"\x0a\x01" + key + b"\x12" + bytes([len(feature)]) + feature
        data += b"\x0a" + bytes([len(entry)]) + entry
    parsed = parse_features(b"\x0a" + bytes([len(data)]) + data)
    np.testing.assert_array_equal(parsed["f"], np.array([0.5, 1.0], np.float32))
    np.testing.assert_array_equal(parsed["i"], [300])


def test_unknown_fields_are_skipped():
    # Field 15 of every wire type, before the features: varint, fixed64, length, fixed32.
    extra = b"\x78\x05" + b"\x79" + bytes(8) + b"\x7a\x02ab" + b"\x7d" + bytes(4)
    assert_same(parse_features(extra + serialize_features(FEATURES)))


def test_a_key_that_occurs_twice_counts_the_last_time():
    twice = serialize_features({"a": [b"1"]}) + serialize_features({"a": [b"2"]})
    assert parse_features(twice) == {"a": [b"2"]}
    assert parse_features(b"") == {}


def test_every_cut_and_other_bytes_are_refused():
    whole = serialize_features(FEATURES)
    cuts = [whole[:kept] for kept in range(1, len(whole))]
    for data in (*cuts, b"\xff" * 20, b"\x0b", b"hello, world", b"\x0a\x05ab"):
        with pytest.raises(BadRecordError, match=r"tf\.Example"):
            parse_features(data)


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
    empty = make_example([], [])
    assert_equal(empty, parse_example(serialize_example(empty, CAT_DOG), CAT_DOG).example)


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


def test_columns_of_defaults_are_left_out_and_absent_columns_have_their_defaults():
    stored = parse_features(serialize_example(two_boxes(), CAT_DOG))
    assert "image/object/difficult" not in stored
    assert "image/object/truncated" not in stored
    marked = two_boxes(difficult=np.array([False, True]))
    stored = parse_features(serialize_example(marked, CAT_DOG))
    assert stored["image/object/difficult"].tolist() == [0, 1]
    assert "image/object/truncated" not in stored
    example = parse_example(changed(is_crowd=None), CAT_DOG).example
    assert example.weights.tolist() == [1, 1]
    for marks in (example.is_crowd, example.difficult, example.truncated):
        assert marks.tolist() == [False, False]
    assert np.isnan(example.area).all()


def test_text_has_precedence_over_label_and_a_difference_is_noted():
    parsed = parse_example(changed(class__label=np.array([2, 2])), CAT_DOG)
    assert parsed.example.class_ids.tolist() == [1, 2]
    assert parsed.disagreeing == ("box 0: text 'cat' is id 1, label is 2",)


def test_label_replaces_an_absent_or_empty_text_but_no_unknown_one():
    for text in (None, [b"", b"dog"]):
        parsed = parse_example(changed(class__text=text), CAT_DOG)
        assert parsed.example.class_ids.tolist() == [1, 2]
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
        ({"bbox__xmin": np.zeros(1, np.float32)}, "not fit together: lengths: ymin 2, xmin 1, ym"),
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
    with pytest.raises(BadRecordError, match="image/height"):
        parse_example(serialize_features({"image/height": np.array([3])}))
    with pytest.raises(BadRecordError, match="it has no features"):
        parse_example(b"")


def test_unused_keys_are_ignored():
    data = changed(group_of=np.array([1]), mask=[b"x"], view=[b"a", b"b", b"c"])
    assert parse_example(data, CAT_DOG).example.class_ids.tolist() == [1, 2]


GOOD = [0.1, 0.2, 0.5, 0.6]
# stored box, reason, what `fix` makes of it (None: dropped); the image is 40 x 60 (height x width)
CASES = {
    "order of y": ([0.5, 0.2, 0.1, 0.6], rules.INVERTED, [0.1, 0.2, 0.5, 0.6]),
    "order of x": ([0.1, 0.6, 0.5, 0.2], rules.INVERTED, [0.1, 0.2, 0.5, 0.6]),
    "order of both": ([0.5, 0.6, 0.1, 0.2], rules.INVERTED, [0.1, 0.2, 0.5, 0.6]),
    "over the edge": ([-0.2, 0.2, 0.5, 1.3], rules.OUTSIDE, [0, 0.2, 0.5, 1]),
    "far off": ([0.1, 1.2, 0.5, 1.6], rules.WHOLLY_OUTSIDE, None),
    "at the edge": ([0.1, 1.0, 0.5, 1.6], rules.WHOLLY_OUTSIDE, None),
    "no height": ([0.3, 0.2, 0.3, 0.6], rules.NO_AREA, None),
    "a point": ([0.3, 0.2, 0.3, 0.2], rules.NO_AREA, None),
    "not a number": ([np.nan, 0.2, 0.3, 0.6], rules.NOT_A_NUMBER, None),
    "infinite": ([0.1, 0.2, np.inf, 0.6], rules.NOT_A_NUMBER, None),
    # 4/40, 12/60, 20/40, 36/60
    "pixels": ([4, 12, 20, 36], rules.IN_PIXELS, [0.1, 0.2, 0.5, 0.6]),
    "too many pixels": ([4, 12, 20, 300], rules.IN_PIXELS, None),
}


@pytest.mark.parametrize("name", CASES)
def test_fix(name):
    stored, reason, fixed = CASES[name]
    example, problems = apply_box_policy(make_example([GOOD, stored], [1, 2]), {}, "fix")
    expected = [GOOD] if fixed is None else [GOOD, fixed]
    np.testing.assert_allclose(example.boxes, np.array(expected, np.float32), atol=1e-7)
    assert example.class_ids.tolist() == [1, 2][: len(expected)]
    (problem,) = problems
    assert (problem.reason, problem.box) == (reason, 1)
    assert problem.action == ("dropped" if fixed is None else "fixed")
    assert "ymin" in problem.detail


@pytest.mark.parametrize("name", CASES)
def test_drop(name):
    stored, reason, _ = CASES[name]
    example, problems = apply_box_policy(make_example([stored, GOOD], [1, 2]), {}, "drop")
    np.testing.assert_array_equal(example.boxes, np.array([GOOD], np.float32))
    assert example.class_ids.tolist() == [2]
    assert [(p.reason, p.box, p.action) for p in problems] == [(reason, 0, "dropped")]


@pytest.mark.parametrize("name", CASES)
def test_fail_changes_nothing_and_names_the_first(name):
    stored, reason, _ = CASES[name]
    given = make_example([GOOD, stored], [1, 2])
    example, problems = apply_box_policy(given, {}, "fail")
    assert example is given
    assert [(p.reason, p.box, p.action) for p in problems] == [(reason, 1, "stopped")]


@pytest.mark.parametrize("policy", ["fix", "drop", "fail"])
def test_an_unknown_class_cannot_be_fixed(policy):
    given = make_example([GOOD, GOOD], [0, 2])
    example, problems = apply_box_policy(given, {0: "'cow'"}, policy)
    assert [(p.reason, p.box, p.detail) for p in problems] == [(rules.UNKNOWN_CLASS, 0, "'cow'")]
    assert example.class_ids.tolist() == ([0, 2] if policy == "fail" else [2])


@pytest.mark.parametrize("policy", ["fix", "drop", "fail"])
def test_sound_boxes_are_left_alone(policy):
    for boxes in ([], [[0, 0, 1, 1]], [GOOD, [0, 0, 1e-6, 1e-6]]):
        given = make_example(boxes, [1] * len(boxes))
        assert apply_box_policy(given, {}, policy) == (given, [])


def test_rounding_errors_are_clipped_without_a_report():
    given = make_example([[-1e-5, 0, 1.00001, 1]], [1])
    example, problems = apply_box_policy(given, {}, "fail")
    assert problems == []
    assert example.boxes.tolist() == [[0, 0, 1, 1]]


def test_several_faults_of_one_box_are_all_named():
    # Inverted, and outside once it is turned round.
    example, problems = apply_box_policy(make_example([[1.5, 0.2, 0.5, 0.6]], [1]), {}, "fix")
    np.testing.assert_allclose(example.boxes, [[0.5, 0.2, 1, 0.6]])
    assert [p.reason for p in problems] == [rules.INVERTED, rules.OUTSIDE]


def test_pixels_need_a_size():
    given = make_example([[4, 12, 20, 36]], [1], height=0, width=0)
    example, problems = apply_box_policy(given, {}, "fix")
    assert len(example.boxes) == 0
    assert problems[0].reason == rules.IN_PIXELS
    assert "the size is unknown" in problems[0].detail


def test_a_converter_has_no_pixels_left():
    given = make_example([[0.1, 0.2, 0.5, 2.6]], [1])
    _, problems = apply_box_policy(given, {}, "fix", pixels_possible=False)
    assert [p.reason for p in problems] == [rules.OUTSIDE]


def test_every_list_loses_the_same_boxes():
    count = 3
    given = make_example(
        [GOOD, [0.3, 0.3, 0.3, 0.3], GOOD],
        [1, 2, 1],
        weights=np.array([0.1, 0.2, 0.3], np.float32),
        is_crowd=np.array([True, True, False]),
        difficult=np.array([False, True, True]),
        truncated=np.array([True, False, False]),
        area=np.arange(count, dtype=np.float32),
    )
    example, _ = apply_box_policy(given, {}, "fix")
    np.testing.assert_allclose(example.weights, [0.1, 0.3])
    assert example.is_crowd.tolist() == [True, False]
    assert example.difficult.tolist() == [False, True]
    assert example.truncated.tolist() == [True, False]
    assert example.area.tolist() == [0, 2]


def test_random_boxes_come_out_sound():
    random = np.random.default_rng(0)
    boxes = random.choice(
        [np.nan, -np.inf, np.inf, -3, -1e-9, 0, 1e-9, 0.3, 0.5, 1, 1.0000001, 1.5, 30], (500, 4)
    )
    example, _ = apply_box_policy(make_example(boxes, [1] * 500), {}, "fix")
    low, high = example.boxes[:, :2], example.boxes[:, 2:]
    assert len(example.boxes)
    assert np.all((low >= 0) & (high <= 1) & (low < high))
