"""`kill -9` of a real training process, at any moment, loses nothing older than its checkpoint."""

import os
import random
import subprocess
import sys
import time

import numpy as np

from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.evaluation.history import HISTORY, read_history
from tests.small import small_overrides

STEPS = 12


def command(scenes, directory):
    overrides = small_overrides(
        scenes,
        f"train.steps={STEPS}",
        "train.checkpoint_every=1",
        "train.keep_checkpoints=2",
        # With everything that a state may hold: averages, accumulators of a part, dropout's keys.
        "train.optimizer={kind: adam}",
        "train.freeze=[^backbone.conv_0]",
        "train.ema_decay=0.9",
        "model.head.dropout=true",
        "data.workers=1",
        evaluated=False,
    )
    words = [word for override in overrides for word in ("--set", override)]
    program = [sys.executable, "-m", "stillbox.cli.main", "train", "demo_scenes"]
    return [*program, "--model-dir", str(directory), *words]


def latest(directory):
    """The newest checkpoint's step, 0 where there is none yet."""
    if not is_model_directory(directory):
        return 0
    return ModelDirectory.open(directory).latest_step() or 0


def kill_after(process, directory, steps, delay):
    """Kills the process `delay` seconds after it has that many checkpoints."""
    while latest(directory) < steps:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    process.wait()


def arrays(directory):
    checkpoint = ModelDirectory.open(directory).checkpoint(STEPS)
    return {
        (section, name): array
        for section in checkpoint.sections
        for name, array in checkpoint.read(section).items()
    }


def test_a_run_killed_three_times_ends_with_the_bits_of_one_never_killed(scenes, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(scenes, whole), check=True, capture_output=True)  # fills the cache too
    # Another moment in every session; the seed is shown where the test fails.
    seed = int.from_bytes(os.urandom(2), "big")
    print("seed", seed)
    moments = random.Random(seed)
    last = 0
    for goal in (2, 5, 8):
        with subprocess.Popen(
            command(scenes, killed), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            kill_after(process, killed, min(goal, STEPS - 1), moments.uniform(0, 0.05))
        assert latest(killed) >= max(last, goal)
        last = latest(killed)
    done = subprocess.run(command(scenes, killed), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"resuming at step {last}" in done.stderr

    expected, found = arrays(whole), arrays(killed)
    assert expected.keys() == found.keys()
    different = [
        key for key in expected if not np.array_equal(expected[key], found[key], equal_nan=True)
    ]
    assert different == []
    # The history has every step once, and no rubbish lies between the checkpoints.
    steps = [line["step"] for line in read_history(killed / HISTORY).training]
    assert steps == list(range(1, STEPS + 1))
    names = {entry.name for entry in (killed / "checkpoints").iterdir()}
    assert names == {str(STEPS - 1), str(STEPS)}
