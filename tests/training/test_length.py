"""The length of a run: steps or epochs, and what fixes the schedule."""

import pytest

from stillbox.experiment.resolve import read_config
from stillbox.training.length import set_length
from tests.helpers import refusal
from tests.small import small_experiment


@pytest.fixture
def small(scenes):
    """The function from overrides to the small experiment of 10 records, with a cosine."""
    cosine = "train.optimizer.schedule={kind: cosine, warmup_steps: 1}"
    start = small_experiment(scenes, cosine)

    def length(*overrides, **options):
        return set_length(read_config(start, overrides), overrides, **options).experiment.train

    return length


def test_epochs_are_passes_over_the_records(small):
    assert small(epochs=6).steps == 15  # 60 images of 4 a step
    assert small("data.train.sample_1_of_n=3", epochs=6).steps == 6
    assert small(epochs=0.1).steps == 1
    stretched = small(epochs=6).optimizer.schedule
    assert (stretched.total_steps, stretched.warmup_steps) == (15, 4)
    assert small().steps == 4


def test_a_schedule_that_is_set_is_not_stretched(small):
    fixed = small("train.optimizer.schedule.total_steps=30", steps=40)
    assert (fixed.steps, fixed.optimizer.schedule.total_steps) == (40, 30)


def test_an_end_of_an_augmentation_that_is_set_is_not_stretched(small):
    mosaic = "train.augmentations=[{kind: mosaic, skip_last_steps: 2}]"
    (stretched,) = small(mosaic, steps=40).augmentations
    assert stretched.skip_last_steps == 20
    (fixed,) = small(mosaic, "train.augmentations.0.skip_last_steps=2", steps=40).augmentations
    assert fixed.skip_last_steps == 2


@pytest.mark.parametrize(
    ("overrides", "options", "expected"),
    [
        ((), {"steps": 3, "epochs": 1}, "a run has one length"),
        (("train.steps=3",), {"epochs": 1}, "leave --set train.steps out"),
        ((), {"steps": 0}, "a run of 0 is none"),
        ((), {"epochs": float("nan")}, "a run of nan is none"),
        ((), {"epochs": -2.0}, "a run of -2.0 is none"),
    ],
)
def test_lengths_that_are_none_are_refused(small, overrides, options, expected):
    error = refusal(small, *overrides, **options)
    assert expected in str(error)
