"""Changed configs are read or refused, and what a config sets shows in the experiment or a note."""

import random
from pathlib import Path

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment.params_dict.command_line import read_text
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.pipeline_config.section import NO_EFFECT, REFUSED, load_schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check, check_trainable, warnings_about
from stillbox.experiment.schema import Experiment, FasterRcnn
from stillbox.experiment.updating import apply_changes
from stillbox.experiment.values import leaf_paths
from stillbox.experiment.yaml_config import from_yaml, read_yaml, to_yaml
from stillbox.textformat.parser import Block, parse
from tests.experiment.fuzzing import attempt, corpus, mutate
from tests.experiment.sample import FASTER_RCNN, SAMPLE
from tests.helpers import refusal, refused
from tests.small import SHARED, needs_shared

CHARACTERS = "{}<>[]:;,\"'\\#.-+x0 \n\té\0?*&!%@|"
VALUES = ["", "null", "true", "-1", "1e-3", "x", "[1, 2]", "{a: b}", "[{kind: adam}]", "1e400"]
DIALECTS = {
    "pipeline.config": (SAMPLE, read_pipeline_config),
    "yaml": (to_yaml(read_pipeline_config(SAMPLE, "p").experiment), read_yaml),
    "faster_rcnn": (FASTER_RCNN, read_pipeline_config),
    "faster_rcnn yaml": (to_yaml(read_pipeline_config(FASTER_RCNN, "p").experiment), read_yaml),
}


def damaged(text, rng):
    """Cuts something out, puts a character in, or copies a piece to where it does not belong."""
    for _ in range(rng.randint(1, 3)):
        place, source = rng.randrange(len(text)), rng.randrange(len(text))
        text = rng.choice(
            [
                text[:place] + text[place + rng.randint(1, 12) :],
                text[:place] + rng.choice(CHARACTERS) + text[place:],
                text[:place] + text[source : source + rng.randint(1, 40)] + text[place:],
            ]
        )
    return text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_damaged_files_are_read_or_refused_with_their_place(dialect):
    text, read = DIALECTS[dialect]
    rng = random.Random(0)
    for _ in range(150):
        try:
            reading = read(damaged(text, rng), "file")
            check(reading.experiment, reading.origins)
            warnings_about(reading.experiment, reading.origins)
        except UserError as error:
            assert error.where, error
        else:
            assert from_yaml(to_yaml(reading.experiment)) == reading.experiment


TWO_STAGES = Experiment(model=FasterRcnn())
FIELDS = [(Experiment(), path) for path in leaf_paths(Experiment())]
FIELDS += [(TWO_STAGES, path) for path in leaf_paths(TWO_STAGES) if path.startswith("model.")]


@pytest.mark.parametrize(
    ("start", "path"), FIELDS, ids=[f"{e.model.kind}-{path}" for e, path in FIELDS]
)
def test_any_value_for_any_field_is_taken_or_refused(start, path):
    for value in VALUES:
        try:
            experiment = apply_changes(start, changes_of([f"{path}={value}"]), {})
            check(experiment, {})
            check_trainable(experiment, {})
        except UserError as error:
            assert error.where, error


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_config_is_read_or_refused_on_one_screen(seed, tmp_path):
    rng, texts = random.Random(seed), corpus()[:7]
    messages = []
    for number in range(150):
        suffix, text = rng.choice(texts)
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(mutate(text, rng))
        messages.append(attempt(path))
    # Most of the damage must be damage, or nothing is tested.
    assert sum(message is not None for message in messages) > 100


BAD = {
    "unknown field": ("num_classes", "num_clases", "4:5", "Ssd has no field 'num_clases'"),
    "wrong type": (
        "num_classes: 3",
        "num_classes: '3'",
        "4:18",
        "num_classes: '3' is not an int32",
    ),
    "enum typo": ("RELU_6", "RELU6", "11:21", "did you mean 'RELU_6' or 'RELU'?"),
    "unclosed brace": ("width: 192 } }", "width: 192 }", "2:7", "before feature_extractor (p.con"),
    "brace too many": ("width: 192 } }", "width: 192 } } }", "70:1", "this '}' closes nothing"),
    "wrong nesting": (
        "  num_steps: 400",
        "  label_map_path: 'x'",
        "73:3",
        "TrainConfig has no field 'label_map_path'\n  fix: it belongs to InputReader: check the",
    ),
    "extension": ("train_config {", "[a.b.c] {} train_config {", "71:1", "the extension [a.b.c]"),
    "Windows path": ('"val.record"', r'"C:\new\val.record"', "119:40", '"C:/new/val.record"'),
    "not UTF-8": ("squirrels", "caf\udce9", "1:17", "byte 0xe9 is not UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_has_line_column_the_offending_text_and_what_was_meant(
    case, tmp_path, monkeypatch
):
    old, new, place, said = BAD[case]
    monkeypatch.chdir(tmp_path)
    content = SAMPLE.replace(old, new, 1).encode(errors="surrogateescape")
    Path("p.config").write_bytes(content)
    caught = refusal(resolve, "p.config")
    assert str(caught).startswith(f"p.config:{place}: ")
    assert said in str(caught)
    assert len(str(caught).splitlines()) <= 3


def test_a_second_member_of_a_choice_is_pointed_at(tmp_path):
    path = tmp_path / "p.config"
    old, new = "fixed_shape_resizer {", "identity_resizer { } fixed_shape_resizer {"
    path.write_text(SAMPLE.replace(old, new))
    (warning,) = (text for text in resolve(path).warnings if "replaces" in text)
    assert warning == (
        f"{path}:5:42: fixed_shape_resizer replaces identity_resizer of {path}:5:21: "
        "only one of them can be set"
    )


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999"])
def test_numbers_are_finite(value, tmp_path):
    path = tmp_path / "p.config"
    path.write_text(SAMPLE.replace("prediction_bias_init: -4.6", f"prediction_bias_init: {value}"))
    with refused("p.config:45:9", "class_bias_init"):
        resolve(path)


HOSTILE = {
    "learning rate": "train: {optimizer: {schedule: {learning_rate: 1%s}}}" % ("0" * 400),
    "NUL in a path": 'data: {train: {paths: ["a\\0b"]}}',
    "half a character": 'name: "\\ud800"',
    "repeated without end": "train: {freeze: ['a{99999999999}']}",
    "brackets of a pattern": "train: {freeze: ['%s']}" % ("(" * 10_000),
    "blocks of a spine": "spinenet: {block_specs: '%s'}\narchitecture: {backbone: spinenet}"
    % ("[" * 100_000),
    "empty lines": "\n" * 500_000 + "[",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_with_their_place(case, tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text(HOSTILE[case])
    caught = refusal(resolve, path)
    assert caught.where.startswith(f"{path}:")


def test_a_hostile_option_is_refused():
    for text in ("[" * 50_000, "{a: " * 30_000, "{a: x*y, b: " + "[" * 50_000):
        with pytest.raises(UserError, match=r"nested deeper|holds no names"):
            read_text(text, "--params_override")


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


def test_every_deprecated_field_has_a_replacement_no_effect_or_a_reason():
    for message in load_schema().messages.values():
        for field in message.fields.values():
            if field.deprecated and field.replacement is None:
                # Limits of evaluation are deprecated and still honoured.
                honoured = field.name in ("num_examples", "max_evals")
                idle = field.name in NO_EFFECT.get(message.name, {})
                assert honoured or idle or f"{message.name}.{field.name}" in REFUSED
