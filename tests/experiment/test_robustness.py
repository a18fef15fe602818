"""Damaged input is read or refused; it never ends in any other exception."""

import random

import pytest

from stillbox.errors import UserError
from stillbox.experiment.overrides import apply_overrides
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.rules import check, check_trainable, warnings_about
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import leaf_paths
from stillbox.experiment.yaml_config import from_yaml, read_yaml, to_yaml
from tests.experiment.sample import SAMPLE

CHARACTERS = "{}<>[]:;,\"'\\#.-+x0 \n\té\0?*&!%@|"
VALUES = ["", "null", "true", "-1", "1e-3", "x", "[1, 2]", "{a: b}", "[{kind: adam}]", "1e400"]
DIALECTS = {
    "pipeline.config": (SAMPLE, read_pipeline_config),
    "yaml": (to_yaml(read_pipeline_config(SAMPLE, "p").experiment), read_yaml),
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


@pytest.mark.parametrize("path", list(leaf_paths(Experiment())))
def test_any_value_for_any_field_is_taken_or_refused(path):
    for value in VALUES:
        try:
            experiment = apply_overrides(Experiment(), [f"{path}={value}"], {})
            check(experiment, {})
            check_trainable(experiment, {})
        except UserError as error:
            assert error.where, error
