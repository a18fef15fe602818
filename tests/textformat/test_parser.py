"""The decoder, against protobuf itself with descriptors made from our tables."""

import functools

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    text_format,
)

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import load_schema
from stillbox.textformat.messages import SCALARS, Decoder, Message, parse_schema
from stillbox.textformat.parser import Block, Scalar, parse
from tests.experiment.sample import FASTER_RCNN, SAMPLE
from tests.helpers import refusal, refused
from tests.small import SHARED, needs_shared

VALUE = parse_schema(
    """
message Value
  number_value: double | kind
  string_value: string | kind
  bool_value: bool | kind
"""
)


def only_value(text):
    (field,) = parse(text, "f").fields
    (value,) = field.values
    return value


def decoded(text):
    message = Decoder(VALUE).decode(parse(text, "f"), "Value")
    (entries,) = message.entries.values()
    return entries[0].value


def theirs(text):
    value = text_format.Merge(text, struct_pb2.Value())
    return getattr(value, value.WhichOneof("kind"))


NUMBERS = "1 -1 +3 0 .04 -.5 1. 1e-8 1.5E+3 0.00004 1.0f 2F 1e5f inf -inf infinity 3.e2"


@pytest.mark.parametrize("number", NUMBERS.split())
def test_numbers_are_protobufs(number):
    text = f"number_value: {number}"
    assert decoded(text) == theirs(text)


@pytest.mark.parametrize("number", ["1.2.3", "0x10", "--1", "e5", "1e", "true", "'1'"])
def test_what_protobuf_refuses_as_a_number_is_refused(number):
    text = f"number_value: {number}"
    with pytest.raises(text_format.ParseError):
        theirs(text)
    with pytest.raises(UserError, match="f:1:"):
        decoded(text)


@pytest.mark.parametrize(
    "literal",
    [
        '"plain"',
        "'single'",
        "'it is \"quoted\"'",
        '"adja" "cent"',
        "'adja'\n  \"cent\"  'three'",
        r'"tab\tnewline\nquote\"backslash\\"',
        r'"octal\101\60 hex\x41\x7a"',
        r'"\303\251"',
        '"é # no comment"',
        '""',
        r"'\'?\a\b\f\v\r'",
        r'"\u00e9\U0001F43F"',
    ],
)
def test_strings_are_protobufs(literal):
    text = f"string_value: {literal}"
    assert decoded(text) == theirs(text)
    assert decoded(r"string_value: 'what\?'") == "what?"


@pytest.mark.parametrize("word", ["true", "True", "t", "1", "false", "False", "f", "0"])
def test_booleans_have_eight_spellings(word):
    text = f"bool_value: {word}"
    assert decoded(text) is theirs(text)


@pytest.mark.parametrize("word", ["yes", "TRUE", "2", "'true'", "on"])
def test_other_words_are_no_booleans(word):
    with refused("f:1:13", "bool_value"):
        decoded(f"bool_value: {word}")


@pytest.mark.parametrize(
    "text",
    [
        "a { b: 1 }",
        "a: { b: 1 }",
        "a < b: 1 >",
        "a: <\n  b: 1\n>",
        "a{b:1}",
        "a { b: 1; }",
        "a { b: 1, },",
        "# above\na { # behind\n b: 1 # here\n}\n# below",
        "\ta\r\n{\r\n\tb : 1 }",
        "a [{ b: 1 }]",
        "a: [ <b: 1> ]",
    ],
)
def test_a_message_can_be_written_in_many_ways(text):
    value = only_value(text)
    assert isinstance(value, Block)
    (inner,) = value.fields
    assert (inner.name, inner.values[0].text) == ("b", "1")


def test_separators_may_be_mixed():
    names = [field.name for field in parse("a: 1, b: 2; c: 3 d: 4\ne: RELU_6,", "f").fields]
    assert names == ["a", "b", "c", "d", "e"]


def test_lists_keep_every_value():
    (field,) = parse("ratios: [1.0, 2.0 , 0.5]", "f").fields
    assert [value.text for value in field.values] == ["1.0", "2.0", "0.5"]
    assert parse("ratios: []", "f").fields[0].values == ()


def test_quoted_and_bare_words_are_told_apart():
    assert only_value("a: RELU_6") == Scalar("RELU_6", False, "f:1:4")
    assert only_value("a: 'RELU_6'") == Scalar("RELU_6", True, "f:1:4")


def test_every_field_and_value_has_line_and_column():
    (model,) = parse("# one\nmodel {\n\tssd <\n    n: 3\n  >\n}", "m.config").fields
    (ssd,) = model.values[0].fields
    (n,) = ssd.values[0].fields
    assert model.where == "m.config:2:1"
    assert model.values[0].where == "m.config:2:7"
    assert ssd.where == "m.config:3:2"
    assert (n.where, n.values[0].where) == ("m.config:4:5", "m.config:4:8")


def test_a_string_over_several_lines_does_not_upset_the_count_of_lines():
    fields = parse("a: 'x'\n 'y'\n b: 2", "f").fields
    assert fields[1].where == "f:3:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 'open\n", r"f:1:4: the string that starts here has no end.*fix: close it with '"),
        ("a { b: 1", r"f:1:3: the '\{' .* is never closed\n  fix: add the missing '\}'"),
        ("a { b { c: 1 }\n", r"f:1:3: the '\{' that opens here is never closed"),
        ("a < b: 1 }", r"f:1:10: this '\}' closes nothing"),
        ("}", r"f:1:1: this '\}' closes nothing"),
        ("a 1", r"f:1:3: found '1' where ':' or '\{' after a"),
        ("a:", r"f:1:3: found end of file where a value"),
        ("a: }", r"f:1:4: found '\}' where a value"),
        ("a: [1, 2", r"f:1:9: found end of file where ',' or '\]'"),
        ("a: [1 2]", r"f:1:7: found '2' where ',' or '\]'"),
        ("a: 1;;", r"f:1:6: found ';' where a field name"),
        ("a: @", r"f:1:4: unexpected character '@'"),
        ("5: 1", r"f:1:1: found '5' where a field name"),
        ("'a': 1", r"f:1:1: found \"'a'\" where a field name"),
        (r"a: 'C:\data'", r"f:1:4: in 'C:.*fix: write 'C:/data'"),
        (r"a: 'C:\new'", r"f:1:4: in 'C:.*fix: write 'C:/new'"),
        (r"a: 'a\data'", r"f:1:4: unknown escape \\d.*fix: write a backslash as"),
        ("a: data/x", r"f:1:8: a: data/x has no quotation marks"),
        ("a: \u201cx\u201d", r"f:1:4: \u201c is no quotation mark here"),
        (
            "a {\n  b {\n    c: 1\n  d: 1\n}\n",
            r"f:1:3: .*never closed, or one inside it.*f:2:5\n  fix: add .* before d \(f:4:3\)",
        ),
        ("a {\nb {\nc: 1\nd: 1\n}\n", r"f:1:3: the '\{' that opens here is never closed\n"),
        (r"a: '\xff'", r"f:1:4: .* is not UTF-8"),
        ("[a.b", r"f:1:5: found end of file where the name of an extension"),
        ("a: [[1]]", r"f:1:5: found '\[' where a value"),
    ],
)
def test_errors_say_line_column_and_what_was_wanted(text, message):
    with pytest.raises(UserError, match=f"(?s){message}"):
        parse(text, "f")


def test_strings_that_look_like_syntax_are_values():
    assert only_value("a: '}'").text == "}"
    assert only_value("a: ['{']").text == "{"
    (outer,) = parse("a { b: '}' c: 'end of file' }", "f").fields
    assert [field.values[0].text for field in outer.values[0].fields] == ["}", "end of file"]


def test_extensions_keep_their_brackets_and_an_empty_text_is_an_empty_message():
    (field,) = parse("[a.b.c] { x: 1 }", "f").fields
    assert field.name == "[a.b.c]"
    assert parse("", "f").fields == ()
    assert parse(" \n# nothing\n", "f").fields == ()


def test_nesting_has_a_limit():
    parse("a {" * 100 + "}" * 100, "f")
    with refused("f:1:302", 100):
        parse("a{ " * 101 + "}" * 101, "f")


ROOT = "TrainEvalPipelineConfig"
CONFIGS = sorted((SHARED / "configs" / "pipeline").glob("*.config"))


@functools.cache
def google_message(root):
    """Returns the protobuf class of a message of our tables; floats are doubles there too."""
    schema = load_schema()
    field_proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tables.proto", package="t", syntax="proto2")
    # Every enum has a message around it, because the values of enums share their scope.
    for name, values in schema.enums.items():
        holder = file.message_type.add(name=f"In_{name.replace('.', '_')}")
        enum = holder.enum_type.add(name="E")
        for word, number in values.items():
            enum.value.add(name=word, number=number)
    file.message_type.add(name="opaque")
    for message in schema.messages.values():
        target = file.message_type.add(name=message.name.replace(".", "_"))
        oneofs = sorted({f.oneof for f in message.fields.values() if f.oneof})
        for oneof in oneofs:
            target.oneof_decl.add(name=f"one_{oneof}")
        for number, field in enumerate(message.fields.values(), start=1):
            added = target.field.add(name=field.name, number=number)
            added.label = (
                field_proto.LABEL_REPEATED if field.repeated else field_proto.LABEL_OPTIONAL
            )
            if field.type in SCALARS:
                kind = "DOUBLE" if field.type == "float" else field.type.upper()
                added.type = getattr(field_proto, f"TYPE_{kind}")
            elif field.type in schema.enums:
                added.type = field_proto.TYPE_ENUM
                added.type_name = f".t.In_{field.type.replace('.', '_')}.E"
            else:
                added.type = field_proto.TYPE_MESSAGE
                added.type_name = f".t.{field.type.replace('.', '_')}"
            if field.oneof:
                added.oneof_index = oneofs.index(field.oneof)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{root}"))


def google_tree(message):
    tree = {}
    for field, value in message.ListFields():
        items = list(value) if field.is_repeated else [value]
        if field.type == field.TYPE_MESSAGE:
            tree[field.name] = [google_tree(item) for item in items]
        elif field.type == field.TYPE_ENUM:
            tree[field.name] = [field.enum_type.values_by_number[item].name for item in items]
        else:
            tree[field.name] = items
    return tree


def our_tree(message):
    return {
        name: [
            our_tree(entry.value) if isinstance(entry.value, Message) else entry.value
            for entry in entries
        ]
        for name, entries in message.entries.items()
    }


def decode(text, root=ROOT):
    decoder = Decoder(load_schema())
    return decoder.decode(parse(text, "f"), root), decoder.warnings


def assert_as_protobuf(text, root=ROOT):
    google = text_format.Merge(text, google_message(root)())
    assert our_tree(decode(text, root)[0]) == google_tree(google)


@pytest.mark.parametrize("text", [SAMPLE, FASTER_RCNN], ids=["ssd", "faster_rcnn"])
def test_the_sample_decodes_as_protobuf_decodes_it(text):
    assert_as_protobuf(text)


@needs_shared
@pytest.mark.proof
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_real_config_decodes_as_protobuf_decodes_it(path):
    text = path.read_text()
    if "[lstm_object_detection" in text:
        with refused("f:18:1"):
            decode(text)
        return
    assert_as_protobuf(text)


@pytest.mark.parametrize(
    "text",
    [
        "model { ssd { num_classes: 3 } } model { ssd { num_classes: 4 } }",
        "model { ssd { num_classes: 3 } } model { ssd { freeze_batchnorm: t } }",
        "model { ssd { num_classes: 3 } faster_rcnn { } }",
        "model { faster_rcnn { num_classes: 1 } ssd { num_classes: 3 } }",
        "model { ssd { num_classes: 3 } faster_rcnn { } ssd { freeze_batchnorm: t } }",
        "eval_input_reader { shuffle: false } eval_input_reader { num_epochs: 1 }",
        "eval_input_reader [{ shuffle: false }, { num_epochs: 1 }]",
        "eval_config { metrics_set: 'a' metrics_set: ['b', 'c'] }",
        "train_config { fine_tune_checkpoint_version: 2 batch_size: 0x10 num_steps: 010 }",
        "train_config { batch_size: 4294967295 replicas_to_aggregate: -2147483648 }",
        "model { ssd { post_processing { score_converter: SOFTMAX } } }",
        "graph_rewriter: < quantization: { delay: 48000 } >",
    ],
)
def test_presence_merging_and_choices_are_protobufs(text):
    assert_as_protobuf(text)


@pytest.mark.parametrize(
    "text",
    [
        "model { ssd { num_classes: 1.5 } }",
        "model { ssd { num_classes: '3' } }",
        "model { ssd { num_classes: true } }",
        "train_config { batch_size: -1 }",
        "train_config { batch_size: 4294967296 }",
        "train_config { fine_tune_checkpoint: model }",
        "train_config { fine_tune_checkpoint_version: V3 }",
        "train_config { fine_tune_checkpoint_version: 'V2' }",
        "train_config { batch_size: [1] }",
        "train_config { optimizer: 3 }",
        "train_config { batch_size { } }",
        "train_confg { }",
        "[extension] { }",
    ],
)
def test_what_protobuf_refuses_is_refused_with_its_place(text):
    with pytest.raises(text_format.ParseError):
        text_format.Merge(text, google_message(ROOT)())
    with pytest.raises(UserError, match=r"^f:1:\d+: "):
        decode(text)


def test_an_unknown_field_or_enum_value_suggests_the_nearest():
    error = refusal(decode, "model {\n  ssd {\n    num_clases: 3\n  }\n}")
    assert str(error) == "f:3:5: Ssd has no field 'num_clases'\n  fix: did you mean 'num_classes'?"
    error = refusal(decode, "model { ssd { post_processing { score_converter: SIGMOIDE } } }")
    assert error.where == "f:1:50"
    assert error.fix == "did you mean 'SIGMOID'?"


def test_values_that_a_later_one_replaces_are_warned_about():
    _, warnings = decode("train_config {\n batch_size: 1\n batch_size: 2\n}")
    assert warnings == ["f:3:2: batch_size is set again; this value replaces that of f:2:2"]
    _, warnings = decode("model {\n ssd { }\n faster_rcnn { }\n}")
    assert warnings == ["f:3:2: faster_rcnn replaces ssd of f:2:2: only one of them can be set"]


def test_a_deprecated_field_names_its_replacement():
    _, warnings = decode("train_config { from_detection_checkpoint: true }")
    assert warnings == [
        "f:1:16: TrainConfig.from_detection_checkpoint is deprecated; "
        "write fine_tune_checkpoint_type: 'detection'"
    ]


def test_every_type_in_the_tables_exists_and_every_default_is_of_its_type():
    schema = load_schema()
    for message in schema.messages.values():
        for field in message.fields.values():
            known = (*SCALARS, "opaque", *schema.messages, *schema.enums)
            assert field.type in known, (message.name, field)
            if field.type in (*SCALARS, *schema.enums):
                assert field.default is not None, (message.name, field)


def test_the_tables_hold_the_whole_language():
    # `object_detection/protos/*.proto` have 150 messages, three of them for label maps. The entries
    # of a map are messages of the format that are declared nowhere.
    messages = load_schema().messages
    assert sum(not name.endswith("MapEntry") for name in messages) == 150 - 3
    assert len(messages["TrainConfig"].fields) == 29
    # 37 of today, and prefetch_buffer_size of early 2018.
    assert len(messages["InputReader"].fields) == 38
    assert len(messages["PreprocessingStep"].fields) == 39


def test_a_table_in_another_notation_is_a_mistake():
    with pytest.raises(ValueError, match="not a field of a message"):
        parse_schema("message M\n  a float")
