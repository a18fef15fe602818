"""Whatever a config sets shows: in the experiment, in a note or a warning, or in a refusal."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.pipeline_config.section import NO_EFFECT, REFUSED, load_schema
from stillbox.textformat.parser import Block, parse
from tests.experiment.sample import FASTER_RCNN, SAMPLE
from tests.small import SHARED, needs_shared

REAL = [
    *(SHARED / "configs" / "pipeline" / f"{name}.config"
     for name in ("ssd_mobilenet_v1_300x300_coco14_sync", "ssd_mobilenet_v1_coco",
     "ssd_mobilenet_v1_pets", "ssd_mobilenet_v1_sushi.floyd", "faster_rcnn_inception_v2",
     "faster_rcnn_resnet50_pets")),
    SHARED / "data" / "raccoon" / "pipeline.config",
]  # fmt: skip
ENUM_OPPOSITES = {
    "RELU_6": "RELU",
    "RELU": "RELU_6",
    "SIGMOID": "IDENTITY",
    "FAN_AVG": "FAN_IN",
    "CLASSIFICATION": "BOTH",
    "SOFTMAX": "IDENTITY",
    "CONV": "FC",
    "FC": "CONV",
}


def scalars(block):
    for field in block.fields:
        for value in field.values:
            if isinstance(value, Block):
                yield from scalars(value)
            else:
                yield field, value


def other(value):
    """Returns another value of the same type, as text."""
    if value.quoted:
        return f"'{value.text}x'"
    opposites = {"true": "false", "false": "true"} | ENUM_OPPOSITES
    if value.text in opposites:
        return opposites[value.text]
    number = float(value.text)
    return value.text + "1" if number else "1"


def replaced(text, value):
    line, column = (int(part) for part in value.where.split(":")[1:])
    lines = text.splitlines(keepends=True)
    row = lines[line - 1]
    length = len(value.text) + 2 * value.quoted
    lines[line - 1] = row[: column - 1] + other(value) + row[column - 1 + length :]
    return "".join(lines)


def assert_nothing_is_ignored(text):
    original = read_pipeline_config(text, "p")
    count = 0
    for field, value in scalars(parse(text, "p")):
        count += 1
        try:
            reading = read_pipeline_config(replaced(text, value), "p")
        except UserError as error:
            assert field.where in str(error) or value.where in str(error), field
            continue
        said = any(field.where in line for line in (*reading.notes, *reading.warnings))
        assert reading.experiment != original.experiment or said, (field.name, value)
    assert count > 60


@pytest.mark.parametrize("text", [SAMPLE, FASTER_RCNN], ids=["ssd", "faster_rcnn"])
def test_changing_any_value_of_the_sample_shows(text):
    assert_nothing_is_ignored(text)


@needs_shared
@pytest.mark.proof
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_changing_any_value_of_a_real_config_shows(path):
    assert_nothing_is_ignored(path.read_text())


def test_the_table_of_fields_without_effect_names_real_fields():
    messages = load_schema().messages
    for message, fields in NO_EFFECT.items():
        assert set(fields) <= set(messages[message].fields), message
    for label in REFUSED:
        message, _, field = label.rpartition(".")
        assert field in messages[message].fields, label


def test_every_deprecated_field_has_a_replacement_or_no_effect():
    for message in load_schema().messages.values():
        for field in message.fields.values():
            if field.deprecated and field.replacement is None:
                # Limits of evaluation are deprecated and still honoured.
                honoured = field.name in ("num_examples", "max_evals")
                assert honoured or field.name in NO_EFFECT[message.name]
