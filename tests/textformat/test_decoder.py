"""The decoder, against protobuf itself with descriptors made from our tables."""

import functools

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import load_schema
from stillbox.textformat.decoder import Decoder, Message
from stillbox.textformat.parser import parse
from stillbox.textformat.schema import SCALARS, parse_schema
from tests.experiment.faster_rcnn_sample import FASTER_RCNN
from tests.experiment.sample import SAMPLE
from tests.shared import SHARED, needs_shared

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
        with pytest.raises(UserError, match=r"f:18:1: the extension .* belongs to another program"):
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


def test_an_unknown_field_suggests_the_nearest():
    with pytest.raises(UserError) as caught:
        decode("model {\n  ssd {\n    num_clases: 3\n  }\n}")
    assert str(caught.value) == (
        "f:3:5: Ssd has no field 'num_clases'\n  fix: did you mean 'num_classes'?"
    )


def test_an_unknown_enum_value_suggests_the_nearest():
    with pytest.raises(UserError) as caught:
        decode("model { ssd { post_processing { score_converter: SIGMOIDE } } }")
    assert caught.value.where == "f:1:50"
    assert caught.value.fix == "did you mean 'SIGMOID'?"


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
    assert len(messages["InputReader"].fields) == 37
    assert len(messages["PreprocessingStep"].fields) == 39


def test_a_table_in_another_notation_is_a_mistake():
    with pytest.raises(ValueError, match="not a field of a message"):
        parse_schema("message M\n  a float")
