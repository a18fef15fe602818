"""Work that takes long is reported while it lasts."""

import os
import sys
import threading

import pytest

from stillbox.devices.announcing import announcing, announcing_alone
from stillbox.errors import UserError


def log_and_bar():
    """Prints what TensorFlow's C++ and a tqdm bar would."""
    os.write(2, b"I0000 oneDNN custom operations are on\n")
    print("Calibration: 100%", file=sys.stderr)
    print("Original model size: 3 MiB")


def test_long_work_is_reported_with_its_progress_and_seconds():
    said, three = [], threading.Event()
    done = iter(range(100))

    def say(line):
        said.append(line)
        if len(said) == 3:
            three.set()

    with announcing(lambda: f"scoring, {next(done)} of 99 images", 0.01, say):
        assert three.wait(300)
    assert said[0] == "scoring, 0 of 99 images: 0 s"
    assert said[2] == "scoring, 2 of 99 images: 0 s"


def test_short_work_is_not_reported(capsys):
    with announcing(lambda: "scoring", patience=300):
        pass
    assert capsys.readouterr().err == ""


def test_what_converters_print_is_kept_back_and_the_work_reported(capfd, monkeypatch):
    monkeypatch.setattr("stillbox.devices.announcing._PATIENCE_SECONDS", 0.01)
    streams = sys.stdout, sys.stderr
    with announcing_alone("writing tflite"):
        log_and_bar()
        seen = ""
        while "writing tflite: 0 s" not in seen:
            out, err = capfd.readouterr()
            seen += err
            assert out == ""
    assert {line.rpartition(":")[0] for line in seen.splitlines()} == {"writing tflite"}
    assert (sys.stdout, sys.stderr) == streams
    log_and_bar()
    out, err = capfd.readouterr()
    assert out == "Original model size: 3 MiB\n"
    assert err.endswith("oneDNN custom operations are on\nCalibration: 100%\n")


def test_the_end_of_it_is_printed_if_a_converter_fails_and_not_with_an_error_of_ours(capfd):
    with pytest.raises(RuntimeError), announcing_alone("writing"):
        log_and_bar()
        raise RuntimeError
    out, err = capfd.readouterr()
    assert out == ""
    assert "oneDNN" in err
    assert "Original model size" in err
    with pytest.raises(UserError), announcing_alone("writing"):
        log_and_bar()
        raise UserError("no such operation")
    assert capfd.readouterr() == ("", "")
