"""Damaged dictionaries are read or refused with a place; they never end in another exception."""

import random

import pytest

from stillbox.errors import UserError
from stillbox.experiment.params_dict import read_params, resolved_text
from stillbox.experiment.params_dict.keys import KEYS
from stillbox.experiment.rules import check
from tests.experiment.test_robustness import damaged

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
