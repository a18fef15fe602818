"""One device and two compute the same; what differs is rounding."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small import DENSE, DENSE_HEADS
from tests.training.eight_devices import SSD

STEPS = 6
DETECTORS = {"ssd": SSD} | {
    head: (*changes, *DENSE, "train.optimizer.schedule.learning_rate=0.001")
    for head, changes in DENSE_HEADS.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", DETECTORS.values(), ids=DETECTORS)
def test_in_float64_a_gradient_of_two_devices_is_that_of_one(changes):
    words = [sys.executable, "-m", "tests.training.two_devices", "float64", str(STEPS), *changes]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], check=True, capture_output=True)
    first, last = json.loads(done.stdout)
    # float64 has 53 bits: 1.1e-16. float32, with 24, is off by 3e-4 in the gradient norm.
    assert first["loss"] < 1e-14
    assert first["gradient_norm"] < 1e-12
    assert first["parameters"] < 1e-14
    # Steps enlarge differences, here as those of float32, by three to four digits.
    assert max(last.values()) < 1e-10
