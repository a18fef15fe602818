"""Learning rates against the original's, executed and published."""

import json
from pathlib import Path

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.training.schedules import build_schedule

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "goldens/training_learning_rates.json").read_text()
)
_STEPS = (
    schema.ScheduleStep(step=2000, learning_rate=0.04),
    schema.ScheduleStep(step=15000, learning_rate=0.004),
)


def cosine(base, total, warm, warmup_steps, hold=0):
    return schema.CosineSchedule(
        learning_rate=base,
        total_steps=total,
        warmup_learning_rate=warm,
        warmup_steps=warmup_steps,
        hold_steps=hold,
    )


GRID = {
    "ssd_mobilenet_v1_300": cosine(0.9, 20000, 0.3, 1000),
    "ppn_300": cosine(0.7, 50000, 0.1333, 2000),
    "fpn_640": cosine(0.04, 25000, 0.013333, 2000),
    "cosine_hold": cosine(0.04, 25000, 0.013333, 2000, hold=3000),
    "manual_seed": schema.ManualStepSchedule(learning_rate=0.01333, schedule=_STEPS, warmup=True),
    "manual_nowarm": schema.ManualStepSchedule(learning_rate=0.01333, schedule=_STEPS),
    "exp": schema.ExponentialSchedule(
        learning_rate=0.004,
        decay_steps=1000,
        decay_factor=0.95,
        burnin_learning_rate=0.001,
        burnin_steps=100,
    ),
    "exp_nostair": schema.ExponentialSchedule(
        learning_rate=0.004,
        decay_steps=1000,
        decay_factor=0.95,
        staircase=False,
        min_learning_rate=0.0035,
    ),
}


def rates(schedule, steps):
    function = build_schedule(schedule)
    return np.array([float(function(step)) for step in steps])


@pytest.mark.parametrize("name", GRID)
def test_rates_equal_the_executed_original(name):
    steps = [int(step) for step in GOLDEN[name]]
    # float32 cosine near its zero: 5e-8 absolute is one part in 1e6 of the base rates.
    np.testing.assert_allclose(
        rates(GRID[name], steps), list(GOLDEN[name].values()), rtol=2e-6, atol=5e-8
    )


@pytest.mark.parametrize(
    ("schedule", "steps", "expected"),
    [
        (cosine(1.0, 100, 0.1, 9), [0, 4, 8, 9, 100, 101], [0.1, 0.5, 0.9, 1.0, 0.0, 0.0]),
        # RetinaNet for TPU: steps and cosine of its published test.
        (
            schema.ManualStepSchedule(
                learning_rate=0.1,
                schedule=(
                    schema.ScheduleStep(step=100, learning_rate=0.2),
                    schema.ScheduleStep(step=200, learning_rate=0.02),
                    schema.ScheduleStep(step=400, learning_rate=0.002),
                ),
                warmup=True,
            ),
            [0, 50, 100, 200, 400],
            [0.1, 0.15, 0.2, 0.02, 0.002],
        ),
        (
            cosine(0.2, 1100, 0.1, 100),
            [0, 50, 100, 350, 600, 850, 1100],
            [0.1, 0.15, 0.2, 0.170710678, 0.1, 0.0292893219, 0],
        ),
        (
            cosine(1.0, 120, 0.1, 9, hold=20),
            [0, 4, 8, 9, 10, 29, 30, 50, 70, 120],
            [0.1, 0.5, 0.9, 1, 1, 1, 0.999702, 0.874255, 0.577365, 0],
        ),
        (
            schema.ManualStepSchedule(
                learning_rate=1.0,
                schedule=tuple(
                    schema.ScheduleStep(step=step, learning_rate=rate)
                    for step, rate in [(2, 2.0), (3, 3.0), (7, 4.0)]
                ),
            ),
            range(10),
            [1, 1, 2, 3, 3, 3, 3, 4, 4, 4],
        ),
        # The sample configs of 2017 repeat the first rate at step 0.
        (
            schema.ManualStepSchedule(
                learning_rate=0.3,
                schedule=(
                    schema.ScheduleStep(step=0, learning_rate=0.2),
                    schema.ScheduleStep(step=2, learning_rate=0.1),
                ),
            ),
            range(4),
            [0.2, 0.2, 0.1, 0.1],
        ),
        (
            schema.ManualStepSchedule(
                learning_rate=0.02,
                warmup=True,
                schedule=tuple(
                    schema.ScheduleStep(step=step, learning_rate=rate)
                    for step, rate in [(4, 0.1), (6, 0.01), (8, 0.001)]
                ),
            ),
            range(9),
            [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001],
        ),
        (
            schema.ExponentialSchedule(
                learning_rate=1.0,
                decay_steps=3,
                decay_factor=0.1,
                burnin_learning_rate=0.5,
                burnin_steps=2,
                min_learning_rate=0.05,
            ),
            range(9),
            [0.5, 0.5, 1, 1, 1, 0.1, 0.1, 0.1, 0.05],
        ),
        (schema.ConstantSchedule(learning_rate=0.5), [0, 7], [0.5, 0.5]),
    ],
)
def test_rates_equal_the_published_unit_tests(schedule, steps, expected):
    np.testing.assert_allclose(rates(schedule, steps), expected, rtol=2e-6, atol=1e-6)
