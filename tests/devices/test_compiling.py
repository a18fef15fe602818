"""Signals end a process that compiles."""

import signal
import subprocess
import sys

import pytest

from stillbox.devices.compiling import Compilation, compilation_left_behind

# As during a compilation in XLA, no handler in Python is called while the C library sleeps.
CHILD = """
import ctypes, signal, sys
# A shell starts what it runs in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from stillbox.cli import check, doctor, main as cli, train
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

train.run = doctor.run = check.run = run
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
