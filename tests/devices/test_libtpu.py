"""libtpu is silenced on machines without a TPU, and unchanged on others."""

import os
import subprocess
import sys

import pytest

from stillbox.devices.libtpu import silence_libtpu
from tests.checking.ahead_of_time.compilers import needs_libtpu

NAMES = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_LOG_DIR")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in NAMES:
        os.environ.pop(name, None)


def test_without_a_tpu_the_variables_are_set(tmp_path):
    os.environ["TPU_LOG_DIR"] = "/logs"
    silence_libtpu(tmp_path)
    assert os.environ["TPU_WORKER_HOSTNAMES"] == "localhost"
    assert os.environ["TPU_LOG_DIR"] == "/logs"


@pytest.mark.parametrize("device", ["accel0", "vfio/0"])
def test_with_a_tpu_no_variable_is_set(tmp_path, device):
    (tmp_path / device).parent.mkdir(exist_ok=True)
    (tmp_path / device).touch()
    silence_libtpu(tmp_path)
    assert not any(name in os.environ for name in NAMES)


@needs_libtpu
def test_two_programs_start_at_once_and_silently():
    code = (
        "from stillbox.devices.libtpu import silence_libtpu; silence_libtpu();"
        "import jax; print(jax.devices()[0].platform, flush=True); input()"
    )
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    runs = [subprocess.Popen([sys.executable, "-c", code], text=True, **options) for _ in range(2)]
    # Each waits for its line until both have started.
    started = [run.stdout.readline() for run in runs]
    said = [run.communicate("\n") for run in runs]
    assert started == ["cpu\n", "cpu\n"]
    assert said == [("", ""), ("", "")]
