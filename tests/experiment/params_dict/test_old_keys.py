"""Today's dialect of the dictionary, and the dialect of 2020.

Damaged dictionaries are read or refused with a place; they never end in another exception.
"""

import random

import pytest

from stillbox.errors import UserError
from stillbox.experiment.params_dict import read_params, resolved_text
from stillbox.experiment.params_dict.command_line import tree_of
from stillbox.experiment.params_dict.keys import FINAL, KEYS, NORM, OLD
from stillbox.experiment.params_dict.reader import read_layers
from stillbox.experiment.rules import check
from tests.experiment.test_robustness import damaged
from tests.helpers import refusal as user_error

# All defaults of 2020 that RetinaNet with ResNet and FPN had, key by key.
NORM_2020 = {
    "batch_norm_momentum": 0.997,
    "batch_norm_epsilon": 1e-4,
    "batch_norm_trainable": True,
    "use_sync_bn": False,
}
LEVELS = ("anchor", "fpn", "nasfpn", "spinenet", "retinanet_head", "postprocess")
YEAR_2020 = {
    "type": "retinanet",
    "enable_summary": True,
    "train.frozen_variable_prefix": (
        r"(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/"
    ),
    "train.space_to_depth_block_size": 1,
    "eval.eval_samples": 5000,
    "retinanet_head.num_classes": 91,
    "retinanet_loss.num_classes": 91,
    "retinanet_head.anchors_per_location": 9,
    "retinanet_head.retinanet_head_num_convs": 4,
    "retinanet_head.retinanet_head_num_filters": 256,
    "retinanet_head.activation": "relu",
    "resnet.activation": "relu",
    "retinanet_parser.use_bfloat16": True,
    "retinanet_parser.use_autoaugment": False,
    "retinanet_parser.autoaugment_policy_name": "v0",
    "spinenet.filter_size_scale": 1.0,
    "spinenet.block_repeats": 1,
    "spinenet.resample_alpha": 0.5,
    "spinenet.endpoints_num_filters": 256,
    "spinenet.init_drop_connect_rate": 0.2,
    "spinenet.activation": "swish",
    "spinenet.batch_norm.batch_norm_momentum": 0.99,
    "spinenet.batch_norm.batch_norm_epsilon": 1e-3,
    "spinenet.batch_norm.use_sync_bn": True,
    "spinenet.block_specs": None,
    **{f"{section}.min_level": 3 for section in LEVELS},
    **{f"{section}.max_level": 7 for section in LEVELS},
    **{
        f"{block}.batch_norm.{name}": value
        for block in ("resnet", "fpn", "nasfpn", "retinanet_head")
        for name, value in NORM_2020.items()
    },
    **{
        f"{block}.dropblock.dropblock_{name}": None
        for block in ("resnet", "nasfpn")
        for name in ("keep_prob", "size")
    },
}


def read(**layer):
    return read_layers(
        [tree_of({path.replace("__", "."): v for path, v in layer.items()}, "probe")]
    )


def read_flat(layer):
    return read_layers([tree_of(layer, "probe")])


def refusal(layer):
    error = user_error(read_flat, layer)
    return str(error)


def test_the_dictionary_of_2020_is_todays():
    reading = read_flat(YEAR_2020)
    same = read_flat({path: value for path, value in YEAR_2020.items() if path in FINAL})
    assert reading.experiment == same.experiment
    # Nothing of it is left behind in words of 2020, but for what this model does not use.
    left = {path.partition(".")[0] for path in reading.params.given if path in OLD}
    assert left == {"spinenet", "nasfpn", "retinanet_parser"}


def test_each_spelling_of_2020_is_named_with_todays():
    reading = read_flat(YEAR_2020)
    said = "\n".join(reading.warnings)
    for today in (
        "architecture.min_level",
        "architecture.num_classes",
        "architecture.use_bfloat16",
        "architecture.space_to_depth_block_size",
        "retinanet_head.num_convs",
        "retinanet_head.num_filters",
        "retinanet_parser.aug_policy",
        "batch_norm_activation.batch_norm_momentum",
        "batch_norm_activation.activation",
    ):
        assert f"of the dictionary of 2020; today's is {today}" in said
    assert "anchor.min_level, retinanet_head.min_level, postprocess.min_level and 1 more" in said
    assert any("not given have the defaults of the last version" in n for n in reading.notes)


def test_todays_dictionary_has_no_note_about_2020():
    reading = read_flat({path: key.default for path, key in FINAL.items()})
    assert reading.warnings == ()
    assert len(reading.notes) == 1 and "use_sync_bn is false" in reading.notes[0]
    assert reading.experiment == read_params().experiment


@pytest.mark.parametrize(("old", "today"), [
    ("retinanet_head.retinanet_head_num_convs=3", "retinanet_head.num_convs=3"),
    ("retinanet_head.retinanet_head_num_filters=64", "retinanet_head.num_filters=64"),
    ("train.space_to_depth_block_size=2", "architecture.space_to_depth_block_size=2"),
    ("retinanet_head.num_classes=4, retinanet_loss.num_classes=4",
     "architecture.num_classes=4"),
    ("anchor.max_level=6, retinanet_head.max_level=6, postprocess.max_level=6, "
     "fpn.max_level=6", "architecture.max_level=6"),
    ("architecture.use_bfloat16=false, retinanet_parser.use_bfloat16=false",
     "architecture.use_bfloat16=false"),
    ("retinanet_parser.use_autoaugment=true", "retinanet_parser.aug_policy=v0"),
    ("retinanet_parser.use_autoaugment=true, retinanet_parser.autoaugment_policy_name=v2",
     "retinanet_parser.aug_policy=v2"),
    ("resnet.activation=swish, retinanet_head.activation=swish",
     "batch_norm_activation.activation=swish"),
    ("resnet.dropblock.dropblock_keep_prob=0.9, resnet.dropblock.dropblock_size=5",
     "dropblock.dropblock_keep_prob=0.9, dropblock.dropblock_size=5"),
])  # fmt: skip
def test_an_old_spelling_and_todays_are_one(old, today):
    before, after = read_params(params_override=old), read_params(params_override=today)
    assert before.experiment == after.experiment
    assert before.experiment != read_params().experiment
    assert before.warnings and not after.warnings


@pytest.mark.parametrize("name", NORM)
def test_batch_norm_of_all_blocks_is_everybodys(name):
    value = {float: 0.5, bool: name == "use_sync_bn"}[NORM[name]]
    blocks = ("resnet", "fpn", "retinanet_head")
    old = read_flat({f"{block}.batch_norm.{name}": value for block in blocks})
    today = read_flat({f"batch_norm_activation.{name}": value})
    assert old.experiment == today.experiment
    assert old.params.value(f"batch_norm_activation.{name}") == value
    assert not any(path in OLD for path in old.params.given)


def test_batch_norm_of_one_block_is_its_own():
    reading = read(fpn__batch_norm__batch_norm_momentum=0.9)
    model = reading.experiment.model
    assert model.neck.conv.batch_norm.decay == 0.9
    assert model.backbone.conv.batch_norm.decay == model.head.conv.batch_norm.decay == 0.997
    assert reading.origins["model.neck.conv.batch_norm.decay"] == "probe"


def test_both_dialects_in_one_file():
    reading = read(
        architecture__min_level=4,
        anchor__min_level=4,
        retinanet_head__num_filters=64,
        retinanet_head__retinanet_head_num_convs=2,
    )
    model = reading.experiment.model
    assert (model.anchors.min_level, model.neck.min_level) == (4, 4)
    assert (model.head.depth, model.head.layers_before) == (64, 2)


def test_a_later_layer_overrides_in_either_dialect():
    old = tree_of({"retinanet_head.retinanet_head_num_filters": 64}, "old")
    today = tree_of({"retinanet_head.num_filters": 32}, "today")
    assert read_layers([old, today]).experiment.model.head.depth == 32
    assert read_layers([today, old]).experiment.model.head.depth == 64


@pytest.mark.parametrize(("layer", "said"), [
    # The restrictions of 2020.
    ({"anchor.min_level": 4},
     "anchor.min_level is 4 (probe) and retinanet_head.min_level is 3 (the default)"),
    ({"retinanet_head.max_level": 6}, "retinanet_head.max_level is 6"),
    ({"anchor.max_level": 6, "retinanet_head.max_level": 6},
     "postprocess.max_level is 7 (the default)"),
    ({"retinanet_head.num_classes": 4}, "retinanet_loss.num_classes is 91"),
    ({"retinanet_parser.use_bfloat16": False},
     "architecture.use_bfloat16 is true (the default)"),
    # No restriction in the original, which built one pyramid for maps and another for anchors.
    ({"nasfpn.min_level": 4, "architecture.multilevel_features": "nasfpn"}, "anchor.min_level"),
    ({"architecture.min_level": 3, "fpn.min_level": 4}, "fpn.min_level is 4"),
    ({"retinanet_head.num_convs": 3, "retinanet_head.retinanet_head_num_convs": 4},
     "are one thing, and have two values"),
    ({"retinanet_parser.aug_policy": "v1", "retinanet_parser.use_autoaugment": False},
     "are one thing, and have two values"),
])  # fmt: skip
def test_copies_that_disagree_are_refused(layer, said):
    message = refusal(layer)
    assert said in message
    assert "fix: " in message


def test_copies_in_blocks_that_are_not_used_do_not_matter():
    reading = read(nasfpn__min_level=4)
    assert reading.experiment == read_params().experiment
    assert any(
        "nasfpn.min_level has no effect here: architecture.multilevel_features is fpn" in note
        for note in reading.notes
    )


LINE = (
    "{ type: retinanet, architecture: {min_level: 4, num_classes: 4}, train: { checkpoint: "
    "{ path: gs://a/model.ckpt, prefix: resnet50/ }, train_file_pattern: /data/train-[0-9]?* }, "
    "anchor: {aspect_ratios: [1.0, 2.0], num_scales: 2}, retinanet_head: {activation: swish} }"
)
PAIRS = "train.total_steps=9e4, anchor.aspect_ratios=[1, 2], model_dir='x, y', fpn.min_level=4"
VALUES = ("-1", "1e-3", "x", "[1, 2]", "{a: b}", "9" * 400, "'('")


def attempt(override):
    try:
        reading = read_params(params_override=override)
        check(reading.experiment, reading.origins)
    except UserError as error:
        assert error.where, error
        return None
    return reading


@pytest.mark.parametrize("text", [LINE, PAIRS])
def test_damaged_overrides_are_read_or_refused(text):
    rng = random.Random(0)
    for _ in range(150):
        reading = attempt(damaged(text, rng))
        if reading is not None:
            again = read_params(params_override=resolved_text(reading.params))
            assert again.experiment == reading.experiment


@pytest.mark.parametrize("path", KEYS)
def test_any_value_for_any_key_is_taken_or_refused(path):
    for value in VALUES:
        attempt(f"{path}={value}")
