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
        "ETA 2 days, 7:33:20"
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


@pytest.mark.parametrize("stop", [3, None])
def test_on_a_terminal_a_bar_carries_the_numbers(capsys, monkeypatch, stop):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with RunProgress(0, stop) as run:
        run.say("a line above")
        run.at(2)
        run.metrics(2, VALUES)
        run.doing("evaluating")
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "a line above" in shown
    assert re.search(r"evaluating .*2/[3?] loss 1.5000 .*12.3 images/s", shown)
