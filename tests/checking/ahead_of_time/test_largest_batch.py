"""The search for the largest batch, with a stand-in for the compiler."""

import jax
import pytest

from stillbox.checking.ahead_of_time import largest_batch
from stillbox.checking.ahead_of_time.largest_batch import find_batch, search
from stillbox.checking.ahead_of_time.memory import Memory
from stillbox.checking.ahead_of_time.report import describe_search
from stillbox.checking.ahead_of_time.steps import StepCheck
from stillbox.checking.ahead_of_time.targets import Target
from stillbox.experiment.resolve import resolve

ROOM = 10_000


def compiler(fixed, each, *, saved=1.0):
    """A program that needs `fixed + each * batch`; its compiler can do with a part of that.

    Like XLA's it does so only where it has to.
    """

    def attempt(size):
        needed = fixed + each * size
        if needed > ROOM and needed * saved <= ROOM:
            needed = ROOM
        if needed > ROOM:
            message = "too large"
            return StepCheck(
                step="train", images=size, devices=8, refused=message, needed=int(needed * saved)
            )
        memory = Memory(
            parameters=fixed,
            optimizer=0,
            average=0,
            batch=0,
            results=0,
            temporaries=needed - fixed,
            code=0,
            usable=ROOM,
        )
        return StepCheck(step="train", images=size, devices=8, memory=memory)

    return attempt


@pytest.mark.parametrize("start", [8, 30, 400, 4000])
@pytest.mark.parametrize(("fixed", "each"), [(0, 10), (5000, 10), (100, 3), (0, 1000)])
@pytest.mark.parametrize("saved", [1.0, 0.7])
def test_the_result_fits_and_is_close_to_the_largest(start, fixed, each, saved):
    attempt = compiler(fixed, each, saved=saved)
    found = search(attempt, 8, start, ROOM)
    most = max(size for size in range(8, 8000, 8) if attempt(size).fits)
    sizes = [trial.images for trial in found.trials]
    assert len(set(sizes)) == len(sizes) <= 10
    assert all(size % 8 == 0 for size in sizes)
    assert most * 15 / 16 - 8 < found.best.images <= most
    assert found.too_large.images > found.best.images


def test_linear_memory_is_extrapolated():
    # 5,000 of 10,000 are left for batches of 10 each: 500, of which 496 is the last multiple.
    found = search(compiler(5000, 10), 8, 64, ROOM)
    assert found.best.images == 496
    # The first, the one that it leads to, and two that do not fit.
    assert [trial.fits for trial in found.trials] == [True, True, False, False]
    assert describe_search(found).startswith("largest batch that fits: 496")


def test_even_the_smallest_batch_may_not_fit():
    found = search(compiler(20_000, 10), 8, 64, ROOM)
    assert found.best is None
    assert min(trial.images for trial in found.trials) == 8
    assert describe_search(found).startswith("no batch fits: 8 does not")


def test_another_reason_than_memory_ends_the_search():
    refusal = StepCheck(step="train", images=64, devices=8, refused="our fault")
    assert search(lambda size: refusal, 8, 64, ROOM).trials == [refusal]


def test_batches_are_multiples_of_devices_and_replicas(monkeypatch):
    attempt, asked = compiler(5000, 10), []

    def check_step(experiment, target, step, say):
        asked.append((step, experiment.train.batch_size))
        return attempt(experiment.train.batch_size)

    monkeypatch.setattr(largest_batch, "check_step", check_step)
    overrides = ("devices.spatial_partitions=2", "devices.replicas=6", "train.batch_size=36")
    experiment = resolve("demo_scenes", overrides).experiment
    # Eight devices, two to an image, are four rows; with six replicas batches are multiples of 12.
    found = find_batch(experiment, Target("eight", jax.devices() * 8, ROOM))
    assert asked[0] == ("train", 36)
    assert all(size % 12 == 0 for _, size in asked)
    assert found.multiple == 12
    assert found.best.images == 492
