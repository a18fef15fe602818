"""Long work is reported while it lasts, and signals end a process that compiles."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from jax import monitoring

from stillbox.devices import announcing as waiting
from stillbox.devices.announcing import StallReporter, announcing, announcing_alone, waiting_for
from stillbox.devices.compiling import Compilation, compilation_left_behind, saved_by_cache
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
    with announcing(lambda: "scoring", first=300):
        pass
    assert capsys.readouterr().err == ""


def test_what_converters_print_is_kept_back_and_the_work_reported(capfd, monkeypatch):
    monkeypatch.setattr(waiting, "_ONCE_SECONDS", 0.01)
    said, printer = threading.Event(), waiting._printer

    def print_and_tell(worker_printer):
        return lambda line: (printer(worker_printer)(line), said.set())

    monkeypatch.setattr(waiting, "_printer", print_and_tell)
    streams = sys.stdout, sys.stderr
    with announcing_alone("writing tflite"):
        log_and_bar()
        assert said.wait(300)
    out, err = capfd.readouterr()
    assert out == ""
    assert {line.rpartition(":")[0] for line in err.splitlines()} == {"writing tflite"}
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
    with waiting_for("the index", first=0.05):
        time.sleep(0.2)
    assert "still waiting after 0 s: the index" in capsys.readouterr().err


# As during a compilation in XLA, no handler in Python is called while the C library sleeps.
CHILD = """
import ctypes, signal, sys
# A shell starts what it runs in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from stillbox.cli import checks, main as cli, train
from stillbox.devices.compiling import Compilation
from stillbox.errors import UserError
from stillbox.training.signals import StopRequest

class Slow:
    def compile(self):
        print("compiling", flush=True)
        ctypes.CDLL(None).sleep(3600)

def run(arguments):
    if arguments.verb == "doctor":
        Compilation(Slow(), "the detector").result()
    if arguments.verb == "check":
        Compilation(Slow(), "the train step")
        raise UserError("the weights are damaged")
    with StopRequest() as stop, stop.ends("compiling the train step"):
        Compilation(Slow(), "the train step").result()

train.run = checks.run_doctor = checks.run_check = run
sys.exit(cli.main())
"""
TRAIN = ("train", "demo_scenes", "--model-dir", "model")


@pytest.mark.parametrize(
    ("number", "verb", "code", "said"),
    [
        (signal.SIGTERM, TRAIN, 143, "stopped by SIGTERM while compiling the train step"),
        (signal.SIGINT, TRAIN, 130, "stopped by SIGINT while compiling the train step"),
        (signal.SIGINT, ("doctor",), 130, ""),
    ],
)
def test_a_signal_ends_a_process_that_compiles(tmp_path, number, verb, code, said):
    command = [sys.executable, "-c", CHILD, *verb]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "compiling\n"
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert said in err
    assert "Traceback" not in err


def test_an_error_ends_a_process_that_compiles_in_the_background(tmp_path):
    command = [sys.executable, "-c", CHILD, "check", "demo_scenes"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == "stillbox check: the weights are damaged\n"


class Program:
    """What is traced, with a result or an error of its compilation."""

    def __init__(self, error=None):
        self.error = error

    def compile(self):
        if self.error is not None:
            raise self.error
        return "compiled"


def test_the_result_or_the_error_of_a_compilation_comes_back():
    assert Compilation(Program(), "a program").result() == "compiled"
    with pytest.raises(MemoryError, match="too large"):
        Compilation(Program(MemoryError("too large")), "a program").result()


def test_a_compilation_that_is_over_is_not_left_behind():
    Compilation(Program(), "it").result()
    assert not compilation_left_behind()


def test_what_the_cache_saves_is_counted_while_it_is_asked_for():
    saved_event = "/jax/compilation_cache/compile_time_saved_sec"
    with saved_by_cache() as saved:
        monitoring.record_event_duration_secs(saved_event, 12.5)
        monitoring.record_event_duration_secs("/jax/another", 3.0)
    monitoring.record_event_duration_secs(saved_event, 7.0)
    assert saved == [12.5]
