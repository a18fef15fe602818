"""Training on a Ray of several raylets: as one process trains, also when workers are killed."""

import json
import os
import subprocess
import sys

import pytest

from stillbox.evaluation.history import HISTORY, read_history
from tests.scaling.ray_kills import command, flags_of_devices

pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
]
STEPS = 300


@pytest.fixture
def run(scenes, tmp_path):
    """Trains with so many workers and signals; returns what `ray_kills` prints."""
    pytest.importorskip("ray")

    def run(workers, signals):
        words = [sys.executable, "-m", "tests.scaling.ray_kills", str(tmp_path), str(scenes)]
        done = subprocess.run(
            [*words, workers, str(STEPS), signals],
            env=os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        ended = json.loads(done.stdout.splitlines()[-1])
        assert ended["code"] == 0, ended["said"]
        assert ended["steps"] == list(range(1, STEPS + 1))
        assert ended["newest"] == STEPS
        return ended

    return run


@pytest.mark.parametrize(("workers", "devices"), [("2", 2), ("v6e:4x4", 16)])
def test_workers_train_as_one_process_with_their_devices(run, scenes, tmp_path, workers, devices):
    words = command(scenes, tmp_path / "one", STEPS)
    environment = os.environ | {"XLA_FLAGS": flags_of_devices(devices)}
    subprocess.run(words, env=environment, check=True, capture_output=True)
    alone = [line["loss"] for line in read_history(tmp_path / "one" / HISTORY).training]
    assert run(workers, "")["losses"] == pytest.approx(alone, rel=1e-4)


def test_killed_workers_are_replaced_and_the_curve_continues(run):
    killed, whole = run("2", "ww"), run("2", "")
    assert len(killed["disturbances"]) == 2
    assert killed["losses"] == pytest.approx(whole["losses"], rel=1e-5)


def test_a_lost_machine_is_left_out_and_a_new_one_used(run):
    ended = run("1:2", "-+")
    assert len(ended["disturbances"]) == 2
