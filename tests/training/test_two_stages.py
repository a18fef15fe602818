"""A detector of two stages on one to eight devices, and after kills: the same numbers."""

import random

import numpy as np
import pytest

from tests.models.two_stage.small import SMALL_OVERRIDES
from tests.training.eight_devices import see
from tools.kill_runs import kill_runs

# Four minutes of a processor: every number of devices has a program of its own.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What eight devices saw."""
    return see("two_stages", tmp_path_factory.mktemp("devices") / "seen.pickle")


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_one_and_three_steps_are_the_same_however_many_devices_there_are(seen, devices):
    one, other = seen["train 1"], seen[f"train {devices}"]
    names = {name for name in one if name[:2] in ("1 ", "3 ")}
    assert len(names) > 100
    for name in sorted(names):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert abs(float(one["3 loss"] - one["1 loss"])) > 1e-3


def test_eight_devices_find_what_one_finds(seen):
    one, eight = seen["detect 1"], seen["detect 8"]
    assert int(one["count"].sum()) > 8
    for name in ("boxes", "scores", "classes", "count"):
        np.testing.assert_allclose(eight[name], one[name], atol=1e-5)


def test_programs_are_compiled_once_and_devices_send_each_other_nothing_but_sums(seen):
    assert {run["compilations"] for run in seen.values()} == {1}
    assert [run["exchanges"] for run in seen.values()] == [[]] * len(seen)


def test_a_run_that_is_killed_ends_with_the_bits_of_one_never_killed(tmp_path):
    changes = (*SMALL_OVERRIDES, "model.boxes.dropout=true")
    phases = ("steps", "checkpoint", "evaluation")
    tallies, faults, _ = kill_runs(tmp_path, phases, random.Random(1), changes=changes)
    assert faults == []
    assert sum(tally.kills for tally in tallies.values()) == len(phases)
