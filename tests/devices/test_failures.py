"""Jobs of real processes that do nothing but wait for one another."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.helpers import free_port

PROCESS = """
import os, sys, time
from stillbox.cli.main import run_process
from stillbox.devices import job
from stillbox.devices.launcher import ProcessInfo
from stillbox.errors import UserError
from stillbox.jax_internals import multihost_utils
index, count, port, work = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
def run():
    multihost_utils.sync_global_devices("started")
    print("pid", os.getpid(), flush=True)
    scope = {"sync": multihost_utils.sync_global_devices, "sleep": time.sleep, "code": 0}
    exec(work, scope)
    return scope["code"]
if count > int(sys.argv[5]):
    job._REPORT_SECONDS, job._JOIN_SECONDS = 1.0, 3
try:
    sys.exit(run_process(ProcessInfo(index, count, f"127.0.0.1:{port}"), run))
except UserError as error:
    sys.exit(str(error))
"""
STEPS = "for step in range(10**6): sync(str(step)); sleep(0.01)"
# Seconds until all have ended.
MOST = 20


@pytest.fixture
def start():
    running = []

    def start(*works, count=None, files=0):
        port = free_port()
        for index, work in enumerate(works):
            count = count or len(works)
            words = [str(index), str(count), str(port), work, str(len(works))]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            limit = ["sh", "-c", f'ulimit -Sn {files}; exec "$@"', "sh"] if files else []
            command = [*limit, sys.executable, "-c", PROCESS, *words]
            running.append(subprocess.Popen(command, **pipes))
        return running

    yield start
    for process in running:
        process.kill()
        process.communicate()


def pid_of(process):
    """Returns the number of a process that has joined the others."""
    words = next(line.split() for line in process.stdout if line.startswith("pid "))
    return int(words[1])


def ends(processes, timeout=MOST):
    """Returns exit code and standard error of all."""
    ended = []
    for process in processes:
        _, errors = process.communicate(timeout=timeout)
        ended.append((process.returncode, errors.strip()))
    return ended


def test_a_failing_process_ends_all_and_is_named(start):
    processes = start(STEPS, "code = 3")
    pids = [pid_of(process) for process in processes]
    sentence = f"process 1 (pid {pids[1]} on "
    for code, said in ends(processes):
        assert code == 3
        (line,) = said.splitlines()
        assert line.startswith(f"stillbox: {sentence}")
        assert line.endswith("ended with exit code 3, see its output; the job has ended")


@pytest.mark.slow
def test_a_job_succeeds_when_all_processes_do(start):
    assert ends(start("", "sleep(1)", "")) == [(0, "")] * 3


@pytest.mark.slow
def test_an_exception_is_printed_by_its_process_alone(start):
    processes = start(STEPS, "raise ValueError('broken')", STEPS)
    for index, (code, said) in enumerate(ends(processes)):
        assert code == 1
        assert ("ValueError: broken" in said) == (index == 1)
        assert "process 1 (pid" in said.splitlines()[-1]


@pytest.mark.slow
def test_a_killed_process_ends_all_and_is_named(start):
    processes = start(STEPS, STEPS, STEPS)
    pids = [pid_of(process) for process in processes]
    os.kill(pids[2], signal.SIGKILL)
    *others, (code, _) = ends(processes)
    assert code == -signal.SIGKILL
    for code, said in others:
        assert code == 128 + signal.SIGKILL
        assert f"process 2 (pid {pids[2]} on " in said
        assert "was killed, or its machine is gone; the job has ended" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number", "seconds", "jax_says"),
    [
        (0, signal.SIGKILL, MOST, "leader (usually slice 0 task 0)"),
        # The heartbeat of JAX.
        (1, signal.SIGSTOP, 60, "stopped sending heartbeats):\n1\n"),
    ],
)
def test_jax_ends_all_where_process_0_is_gone_or_another_is_silent(
    start, victim, number, seconds, jax_says
):
    processes = start(STEPS, STEPS)
    pids = [pid_of(process) for process in processes]
    os.kill(pids[victim], number)
    ((code, said),) = ends([processes[1 - victim]], seconds)
    assert code in (128 + signal.SIGKILL, -signal.SIGABRT)
    assert jax_says in said


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_waiting_for_a_process_is_reported_and_jax_names_those_that_lack(start, index):
    processes = start(*[""] * (index + 1), count=3)
    for process in processes[:index]:
        process.kill()
    ((code, said),) = ends([processes[index]], 60)
    assert code == -signal.SIGABRT
    assert said.startswith(f"process {index} of 3: still waiting after 1 s: the other processes")
    if index == 0:
        assert re.search(r"timed out task names:\n(1\n2|2\n1)\n", said)


def test_a_job_may_open_more_files_than_usual(start):
    """Gloo ends all processes when process 0 has no descriptor for the next connection."""
    work = (
        "import resource; allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE); "
        "assert allowed == most, (allowed, most)"
    )
    for process in start(work, work, files=64):
        said = process.communicate(timeout=60)
        assert process.returncode == 0, said
