import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from stillbox.records.problems import BadRecordError
from stillbox.records.wire import parse_features, serialize_features


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

    one, many, inner = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED, kinds.TYPE_MESSAGE
    message("BytesList", ("value", kinds.TYPE_BYTES, many, ""))
    message("FloatList", ("value", kinds.TYPE_FLOAT, many, ""))
    message("Int64List", ("value", kinds.TYPE_INT64, many, ""))
    feature = message(
        "Feature",
        ("bytes_list", inner, one, ".t.BytesList"),
        ("float_list", inner, one, ".t.FloatList"),
        ("int64_list", inner, one, ".t.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", inner, many, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=inner, label=one, type_name=".t.Feature")
    message("Example", ("features", inner, one, ".t.Features"))
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


def test_what_protobuf_wrote_is_read():
    assert_same(parse_features(protobuf_bytes()))


def test_protobuf_reads_what_is_written():
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


def test_no_bytes_are_an_example_without_features():
    assert parse_features(b"") == {}


def test_every_cut_is_refused_or_read_as_a_shorter_message():
    data = serialize_features(FEATURES)
    for kept in range(1, len(data)):
        with pytest.raises(BadRecordError, match=r"not a tf\.Example"):
            parse_features(data[:kept])


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0b", b"hello, world", b"\x0a\x05ab"])
def test_other_bytes_are_refused(data):
    with pytest.raises(BadRecordError, match=r"not a tf\.Example"):
        parse_features(data)
