"""What a person sees of a run."""

import re
import sys

import pytest

from stillbox.training.progress import RunProgress

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


def test_without_a_terminal_every_line_stands_for_itself(capsys):
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


def test_long_lines_and_brackets_come_out_as_they_are(capsys):
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
    """Returns what was on the lines of the terminal, one after the other."""
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


def test_nothing_of_the_line_is_left_at_the_end_or_after_an_interruption(capsys, terminal):
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
