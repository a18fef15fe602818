"""Steps, images and seconds from one look to the next."""

import numpy as np
import pytest

from stillbox.training import speed
from stillbox.training.speed import Speedometer, Stopwatch, Waits


@pytest.fixture
def clock(monkeypatch):
    """A list with the one number that the clock shows."""
    now = [50.0]
    monkeypatch.setattr(speed.time, "monotonic", lambda: now[0])
    return now


def test_a_look_tells_what_was_done_since_the_look_before(clock):
    waited = [0.0]
    meter = Speedometer(Stopwatch(), 8, lambda: (waited[0],))
    clock[0], waited[0] = 54.0, 1.0
    # 10 steps of 8 images in 4 seconds, one of which was waited for.
    assert meter.look(10).rates() == {
        "images_per_second": 20.0,
        "steps_per_second": 2.5,
        "waiting_for_data": 0.25,
    }
    clock[0] = 56.0
    assert meter.look(11).rates() == {
        "images_per_second": 4.0,
        "steps_per_second": 0.5,
        "waiting_for_data": 0.0,
    }


def test_pauses_are_left_out_even_those_that_fail(clock):
    watch = Stopwatch()
    meter = Speedometer(watch, 4, lambda: (0.0,))
    clock[0] += 1
    with pytest.raises(ZeroDivisionError), watch.paused():
        clock[0] += 100
        raise ZeroDivisionError
    clock[0] += 1
    assert watch.seconds == 2.0
    assert meter.look(2).images_per_second == 4.0


def test_steps_that_are_looked_at_together_have_one_speed(clock):
    meter = Speedometer(Stopwatch(), 4, lambda: (0.0,))
    clock[0] += 2
    first = meter.look(3)
    clock[0] += 1e-3
    assert meter.look(3) == first
    assert first.images_per_second == 6.0


def test_nobody_waits_longer_than_it_took(clock):
    """The wait for the batch of the next step may have begun already."""
    waited = [0.0]
    meter = Speedometer(Stopwatch(), 1, lambda: (waited[0],))
    clock[0], waited[0] = 51.0, 1.5
    assert meter.look(1).rates()["waiting_for_data"] == 1.0


def test_a_step_waits_for_the_process_that_waits_longest(clock):
    waits = Waits(3)
    meter = Speedometer(Stopwatch(), 2, waits.seconds)
    # Step 1 stands still for 1 s (process 2), step 2 for 0.5 s (process 0).
    waits.add(np.array([[0.25, 0.0, 1.0], [0.5, 0.25, 0.0]]))
    clock[0] += 6
    rates = meter.look(2).rates()
    assert rates["waiting_for_data"] == 0.25
    assert rates["slowest_process"] == 2
