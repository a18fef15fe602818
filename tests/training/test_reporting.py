"""The reports of a run: speed, ends of epochs, the first step, forecast and end."""

import re
import sys

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.training import reporting
from stillbox.training.length import minutes_in_steps
from stillbox.training.progress import RunProgress
from stillbox.training.reporting import Epochs, Forecast, Speedometer, StepReport, Stopwatch, Waits


@pytest.fixture
def clock(monkeypatch):
    """A list with the one number that the clock shows."""
    now = [50.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    return now


def test_a_look_measures_the_steps_since_the_last_look(clock):
    waited = [0.0]
    meter = Speedometer(Stopwatch(), 8, lambda: (waited[0],))
    clock[0], waited[0] = 54.0, 1.0
    # 10 steps of 8 images in 4 seconds, one of which is a wait.
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


def test_steps_of_one_look_have_one_speed(clock):
    meter = Speedometer(Stopwatch(), 4, lambda: (0.0,))
    clock[0] += 2
    first = meter.look(3)
    clock[0] += 1e-3
    assert meter.look(3) == first
    assert first.images_per_second == 6.0


def test_the_wait_is_no_longer_than_the_steps(clock):
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


@pytest.fixture
def sentences(monkeypatch):
    """The function from a run to its sentences by step. Each step takes ten seconds."""

    def run(*, records, batch_size, apart, first=0, steps=12):
        now = [0.0]
        monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
        epochs = Epochs(
            records=records,
            batch_size=batch_size,
            first=first,
            apart=apart,
            speedometer=Speedometer(Stopwatch(), batch_size, lambda: (0.0,)),
        )
        said = {}
        for step in range(first + 1, first + steps + 1):
            now[0] += 10
            if sentence := epochs.ended(step, step - first):
                said[step] = sentence
        return said

    return run


def test_an_epoch_ends_with_the_step_that_has_its_last_image(sentences):
    # 10 images in batches of 4: the 10th, 20th, 30th and 40th are in steps 3, 5, 8 and 10.
    assert sentences(records=10, batch_size=4, apart=1) == {
        3: "epoch 1 finished: 0:00:30, 0.4 images/s",
        5: "epoch 2 finished: 0:00:20, 0.4 images/s",
        8: "epoch 3 finished: 0:00:30, 0.4 images/s",
        10: "epoch 4 finished: 0:00:20, 0.4 images/s",
    }


def test_epochs_of_one_step_share_a_sentence(sentences):
    assert sentences(records=4, batch_size=4, apart=5) == {
        5: "epochs 1 to 5 finished: 0:00:50, 0.4 images/s",
        10: "epochs 6 to 10 finished: 0:00:50, 0.4 images/s",
    }


def test_a_sentence_comes_at_the_end_of_an_epoch(sentences):
    # Epochs end with steps 3, 6, 9 and 12; five steps after the start is in the middle of one.
    assert list(sentences(records=12, batch_size=4, apart=5)) == [6, 12]


def test_batches_larger_than_the_data_end_several_epochs_at_once(sentences):
    said = sentences(records=3, batch_size=7, apart=1, steps=2)
    # 7 images are two passes and one image, 14 are four and two.
    assert said == {
        1: "epochs 1 to 2 finished: 0:00:10, 0.7 images/s",
        2: "epochs 3 to 4 finished: 0:00:10, 0.7 images/s",
    }


def test_a_resumed_run_reports_a_part_of_an_epoch(sentences):
    said = sentences(records=20, batch_size=4, apart=1, first=7, steps=8)
    assert said == {
        10: "epoch 2 finished (from step 7 on): 0:00:30, 0.4 images/s",
        15: "epoch 3 finished: 0:00:50, 0.4 images/s",
    }
    # A run that resumes at the end of an epoch trains on all of the next one.
    whole = sentences(records=20, batch_size=4, apart=1, first=5, steps=5)
    assert whole == {10: "epoch 2 finished: 0:00:50, 0.4 images/s"}


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


def report_of(summaries, first, stop_at, monkeypatch, waits=None, began=None):
    monkeypatch.setattr("stillbox.training.reporting.Epochs", lambda **_: NoEpochs())
    return StepReport(
        schema.Training(log_every=10),
        NoLoader(),
        waits or Waits(1),
        first=first,
        stop_at=stop_at,
        progress=RunProgress(first, stop_at),
        summaries=summaries,
        began=began,
    )


class NoEpochs:
    """Epochs that do not end."""

    def ended(self, step, done):
        return ""


def test_a_run_that_waits_for_data_is_told_once_what_helps(clock, capsys, monkeypatch):
    for waited, told in ((0.1, 0), (0.3, 1)):
        waits = Waits(1)
        report = report_of(NoSummaries(), 0, 1000, monkeypatch, waits)
        clock[0] += 50
        waits.add(np.array([[50.0]]))
        for step in range(1, 201):
            report.steps([(step, METRICS)])
            waits.add(np.array([[waited]]))
            clock[0] += 1
        said = [
            line for line in capsys.readouterr().err.splitlines() if "waiting for data: " in line
        ]
        assert len(said) == told
    assert said[0].startswith("30% of the time is spent waiting for data: data.processes helps if")


def test_a_run_begins_with_its_forecast(capsys, monkeypatch):
    for first, forecast in ((150, Forecast(1, 4, "its costs")), (999, None), (150, None)):
        report_of(NoSummaries(), first, 1000, monkeypatch).begin(forecast)
    assert capsys.readouterr().err.splitlines() == [
        "850 steps to do: about 14 minutes to 57 minutes, by its costs; measured after the first 6",
        "850 steps to do; measured after the first 6",
    ]


def test_the_time_left_has_neither_the_first_step_nor_pauses(clock, capsys, monkeypatch):
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
    # The history has the same steps as the history of a run that is not resumed.
    assert summaries.steps == [1010]


@pytest.mark.parametrize(("first", "told"), [(0, 1), (1000, 0)])
def test_a_run_of_no_asked_length_is_told_what_minutes_would_be(
    clock, capsys, monkeypatch, first, told
):
    # The call was 30 seconds ago, and the loader takes 10 more; then steps of 2 seconds.
    report = report_of(NoSummaries(), first, first + 3000, monkeypatch, began=clock[0] - 30)
    clock[0] += 12
    report.steps([(first + 1, METRICS)])
    for step in range(first + 2, first + 11):
        clock[0] += 2
        report.steps([(step, METRICS)])
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if "minutes" in line] or [""]
    # .9 of 300 - 40 seconds are 117 steps; 387 and 1,602 for 15 and 60 minutes.
    expected = (
        "5, 15 and 60 minutes would be about 120, 390 and 1,600 steps (minutes=5 asks for it)"
    )
    assert (line == expected) == bool(told)


def test_minutes_that_are_over_before_the_first_step_are_not_named():
    assert minutes_in_steps(400, 2.0).startswith("15 and 60 minutes would be")
    assert minutes_in_steps(1000, 2.0).startswith("60 minutes would be about 1,200 steps")
    assert not minutes_in_steps(4000, 2.0)


def test_a_run_without_end_has_no_time_left(clock, capsys, monkeypatch):
    report = report_of(NoSummaries(), 0, None, monkeypatch)
    clock[0] += 1
    report.steps([(1, METRICS)])
    assert "ETA" not in capsys.readouterr().err


# ---- What a person sees of a run -----------------------------------------------------------------


VALUES = {
    "loss": 1.5,
    "classification_loss": 1.0,
    "localization_loss": 0.25,
    "regularization_loss": 0.25,
    "learning_rate": 0.001,
    "images_per_second": 12.34,
    "steps_per_second": 3.2,  # 1000 / 3.2 = 312.5 ms
    "waiting_for_data": 0.056,
}


def test_without_a_terminal_every_line_is_complete(capsys):
    with RunProgress(0, 10) as run:
        run.doing("evaluating")
        run.at(5)
        run.metrics(5, VALUES, 200_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "... evaluating"
    assert lines[1].startswith(
        "step 5/10  loss 1.5000 "
        "(classification 1.0000, localization 0.2500, regularization 0.2500)  "
        "learning rate 0.001  12.3 images/s  312.5 ms a step  waiting for data 6%  "
        "ETA 2d 7:33:20"
    )
    assert len(lines) == 2


def test_a_run_without_end_has_no_eta(capsys):
    with RunProgress(0, None) as run:
        run.metrics(5, VALUES)
    line = capsys.readouterr().err
    assert line.startswith("step 5  loss")
    assert "ETA" not in line


def test_long_lines_and_brackets_are_printed_unchanged(capsys):
    text = "the file [bold]" + "x" * 300
    with RunProgress(0, 1) as run:
        run.say(text)
    assert capsys.readouterr().err == text + "\n"


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal of some columns."""

    def make(columns):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))

    return make


def shown_lines(capsys):
    """Returns the successive contents of the lines of the terminal."""
    text = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().err)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "\n", text)
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (40, ["850/1000", "ETA 0:01:40", "loss 1.5000"]),
        (80, ["step 850/1000", "ETA 0:01:40", "loss 1.5000", "12.3 images/s"]),
        (120, ["ETA 0:01:40", "loss 1.5000", "312.5 ms a step", "learning rate 0.001"]),
        (200, ["ETA 0:01:40", "waiting for data 6%", "(classification 1.0000, localization"]),
    ],
)
def test_one_line_of_any_width_has_the_most_important_first(capsys, terminal, columns, words):
    terminal(columns)
    with RunProgress(0, 1000) as run:
        run.metrics(850, VALUES, 100)
    line = next(line for line in reversed(shown_lines(capsys)) if "ETA" in line)
    assert re.match(r"(step )?850/1000 +\S*\u2501{3,}\S* .*ETA", line)
    assert len(line) <= columns - 3  # the echo of Ctrl-C begins no other line
    places = [line.find(word) for word in words]
    assert -1 not in places
    assert places == sorted(places)


def test_the_line_disappears_at_the_end_and_after_an_interruption(capsys, terminal):
    terminal(80)
    with pytest.raises(KeyboardInterrupt), RunProgress(0, 10) as run:
        run.metrics(2, VALUES)
        raise KeyboardInterrupt
    # The line is erased, and the cursor is back at its beginning.
    assert re.search(r"\r?\x1b\[1A\x1b\[2K$|\r\x1b\[2K$", capsys.readouterr().err)


@pytest.mark.parametrize("stop", [3, None])
def test_on_a_terminal_lines_appear_above_the_bar(capsys, terminal, stop):
    terminal(200)
    with RunProgress(0, stop) as run:
        run.say("a line above")
        run.at(2)
        run.metrics(2, VALUES)
        run.doing("evaluating")
    shown = shown_lines(capsys)
    assert "a line above" in shown
    assert re.match(r"evaluating 2(/3)? ", shown[-1])
