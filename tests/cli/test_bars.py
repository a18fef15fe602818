"""Progress without a terminal."""

import re
import threading
from functools import partial

import pytest

from stillbox.cli import bars

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")


def test_without_a_terminal_lines_say_how_far_long_work_is(capsys, monkeypatch):
    monkeypatch.setattr(bars, "announcing", partial(bars.announcing, patience=0.01))
    pause = threading.Event()
    with bars.progress_bar("images") as progress:
        err = ""
        progress(320, 5000)
        while not re.search(r"images: 320 of 5000, [0-9.]+/s: ", err):
            pause.wait(0.005)
            err += capsys.readouterr().err
    assert err.count("320 of") == 1  # what does not move is not repeated


def test_short_work_prints_nothing_without_a_terminal(capsys):
    with bars.progress_bar("images") as progress:
        progress(1, 1)
    assert capsys.readouterr().err == ""
