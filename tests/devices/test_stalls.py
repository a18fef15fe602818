"""Long waits are reported while they last; short ones are not."""

import time

import pytest

from stillbox.devices.stalls import StallReporter, waiting_for


def test_a_short_wait_is_not_reported():
    said = []
    with StallReporter(5.0, said.append) as stalls:
        assert list(stalls.over([1, 2, 3], "numbers")) == [1, 2, 3]
    assert said == []


def test_a_long_wait_is_reported_during_it_and_at_its_end():
    said = []

    def slow():
        yield 1
        while not said:  # it is said before this goes on, or this never ends
            time.sleep(0.01)
        yield 2

    with StallReporter(0.1, said.append) as stalls:
        assert list(stalls.over(slow(), "the numbers")) == [1, 2]
    assert said[0].startswith("still waiting after 0 s: the numbers")
    assert said[-1].startswith("the numbers: there after 0 s")


def test_reports_of_a_wait_become_rarer():
    said = []
    with StallReporter(0.05, said.append) as stalls, stalls.waiting("nothing"):
        time.sleep(1.0)
    # After 0.05, 0.1, 0.2, 0.4 and 0.8 s, and once at the end.
    assert 3 <= len(said) <= 6


def test_an_error_passes_through_without_a_report():
    said = []

    def slow_int(text):
        time.sleep(0.02)
        return int(text)

    with StallReporter(0.01, said.append) as stalls:
        failing = stalls.over(map(slow_int, ["1", "two"]), "numbers")
        assert next(failing) == 1
        with pytest.raises(ValueError, match="two"):
            next(failing)
    assert sum(line.startswith("numbers: there") for line in said) == 1


def test_a_single_wait_is_reported(capsys):
    with waiting_for("the index", patience=0.05):
        time.sleep(0.2)
    assert "still waiting after 0 s: the index" in capsys.readouterr().err
