"""`kill -9` of a real training process, at any moment, loses nothing older than its checkpoint."""

import os
import random
import shutil
from pathlib import Path

import pytest

from tools.kill_runs import PHASES, find_fault, kill_runs


def test_a_run_that_is_killed_ends_with_the_bits_of_one_never_killed(tmp_path):
    # Other moments in every session; the seed is shown where the test fails.
    seed = int.from_bytes(os.urandom(2), "big")
    print("seed", seed)
    cache = Path(os.environ["STILLBOX_CACHE"])
    tallies, faults, _ = kill_runs(tmp_path, ("checkpoint",), random.Random(seed), cache)
    assert faults == []
    assert sum(tally.kills for tally in tallies.values()) == 1
    assert sum(tally.unreadable + tally.lost for tally in tallies.values()) == 0


@pytest.mark.slow
def test_a_run_that_is_killed_in_every_phase_loses_nothing(tmp_path):
    tallies, faults, _ = kill_runs(tmp_path, PHASES, random.Random(1))
    assert faults == []
    assert sum(tally.kills for tally in tallies.values()) == len(PHASES)


def test_the_tool_finds_half_a_checkpoint(trained_once, tmp_path):
    assert find_fault(trained_once) == ""
    copy = shutil.copytree(trained_once, tmp_path / "model")
    damaged = copy / "checkpoints/2/params.npz"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    assert "params.npz" in find_fault(copy)
