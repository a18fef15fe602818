"""When the run ends, and what is said of the first step."""

import re

import pytest

from stillbox.experiment import schema
from stillbox.training import speed
from stillbox.training.forecast import Forecast
from stillbox.training.progress import RunProgress
from stillbox.training.reporting import StepReport
from stillbox.training.speed import Waits

METRICS = {"loss": 1.5, "classification_loss": 1.5, "learning_rate": 0.1}


class NoLoader:
    """A loader of 1000 records, four at a time."""

    batch_size = 4
    dataset = ()


class NoSummaries:
    """Keeps the steps of its entries."""

    def __init__(self):
        self.steps = []

    def metrics(self, step, values):
        self.steps.append(step)


@pytest.fixture
def clock(monkeypatch):
    """A list with the one number that the clock shows."""
    now = [50.0]
    monkeypatch.setattr(speed.time, "monotonic", lambda: now[0])
    return now


def report_of(summaries, first, stop_at, monkeypatch):
    monkeypatch.setattr("stillbox.training.reporting.Epochs", lambda **_: NoEpochs())
    return StepReport(
        schema.Training(log_every=10),
        NoLoader(),
        Waits(1),
        first=first,
        stop_at=stop_at,
        progress=RunProgress(first, stop_at),
        summaries=summaries,
    )


class NoEpochs:
    """Epochs that do not end."""

    def ended(self, step, done):
        return ""


def test_a_run_begins_with_the_time_that_it_may_take(capsys, monkeypatch):
    for first, forecast in ((150, Forecast(1, 4, "its costs")), (999, None), (150, None)):
        report_of(NoSummaries(), first, 1000, monkeypatch).begin(forecast)
    assert capsys.readouterr().err.splitlines() == [
        "850 steps to do: about 14 minutes to 57 minutes, by its costs; measured after the first 6",
        "850 steps to do; measured after the first 6",
    ]


def test_the_first_step_is_said_at_once_and_the_time_left_has_neither_it_nor_pauses(
    clock, capsys, monkeypatch
):
    summaries = NoSummaries()
    report = report_of(summaries, 1000, 101_010, monkeypatch)
    clock[0] += 50  # the loader begins
    report.steps([(1001, METRICS)])
    clock[0] += 8
    with report.paused():
        clock[0] += 1000  # an evaluation
    clock[0] += 10
    report.steps([(step, METRICS) for step in range(1002, 1011)])
    first, length, second = capsys.readouterr().err.splitlines()
    assert (
        length
        == "measured: about 2d 7:33:36 for the 100,008 steps to come, evaluations not counted"
    )
    assert re.match(r"step 1001/101010  loss 1.5000 ", first)
    assert "ETA" not in first  # there is nothing yet to extrapolate
    # 9 steps in 18 seconds leave 100,000 steps of 2 seconds.
    assert second.startswith("step 1010/101010")
    assert second.endswith("ETA 2d 7:33:20")
    # The history has the steps that it has in a run that is not resumed.
    assert summaries.steps == [1010]


def test_a_run_without_end_has_no_time_left(clock, capsys, monkeypatch):
    report = report_of(NoSummaries(), 0, None, monkeypatch)
    clock[0] += 1
    report.steps([(1, METRICS)])
    assert "ETA" not in capsys.readouterr().err
