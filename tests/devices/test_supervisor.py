"""Supervisors and children as real processes; none of them starts jax."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest

from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.supervisor import Child

SUPERVISE = """
import os, sys
from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.supervisor import supervise
index, count, port, child = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
command = [sys.executable, "-c", child, str(index)]
sys.exit(supervise(ProcessInfo(index, count, f"127.0.0.1:{port}"), command, os.environ))
"""
IMPATIENT = """
from stillbox.devices import supervisor
supervisor._FIRST_REPORT_SECONDS, supervisor._JOIN_SECONDS = 0.3, 0.6
"""
HEAD = """
import os, signal, sys, time
from stillbox.devices.supervisor import end_with_supervisor, report_failure
end_with_supervisor()
index = int(sys.argv[1])
print("pid", os.getpid(), flush=True)
"""
WAIT = "time.sleep(60)\n"


def free_port():
    """Returns a port whose successor is free: that is the one that is listened on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1] - 1


@pytest.fixture
def start():
    running = []

    def start(*children):
        port = str(free_port())
        for index, child in enumerate(children):
            command = [sys.executable, "-c", SUPERVISE, str(index), str(len(children)), port]
            running.append(
                subprocess.Popen(
                    [*command, HEAD + child],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return running

    yield start
    for process in running:
        process.kill()
        process.communicate()


def pid_of_child(process):
    word, pid = process.stdout.readline().split()
    assert word == "pid"
    return int(pid)


def ends(processes):
    """Returns exit code and last line of standard error of all."""
    found = []
    for process in processes:
        _, errors = process.communicate(timeout=30)
        found.append((process.returncode, errors.strip().splitlines()[-1:]))
    return found


def test_a_job_succeeds_when_all_processes_do(start):
    assert ends(start("", "time.sleep(0.5)", "")) == [(0, [])] * 3


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_process_ends_all_and_is_named(start, victim):
    processes = start(WAIT, WAIT, WAIT)
    pids = [pid_of_child(process) for process in processes]
    os.kill(pids[victim], signal.SIGKILL)
    began = time.monotonic()
    for code, (line,) in ends(processes):
        assert code == 128 + signal.SIGKILL
        assert f"process {victim} (pid {pids[victim]} on " in line
        assert "was killed by SIGKILL; the job has ended" in line
    assert time.monotonic() - began < 20


def test_the_first_cause_is_named_not_its_consequences(start):
    # The others fail at once, as they do when a collective loses a member; the cause comes later
    # by a moment.
    processes = start("sys.exit(1)", "time.sleep(0.3); sys.exit(2)", "sys.exit(1)")
    for code, (line,) in ends(processes):
        assert code == 2
        assert "process 1 (pid" in line
        assert "ended with exit code 2" in line


def test_a_failed_process_waits_until_the_others_are_stopped(start, tmp_path):
    # The first holds a lock until it is gone; the other complains when it gets it.
    lock = tmp_path / "lock"
    lock.touch()
    hold = f"import fcntl; f = open({str(lock)!r}); fcntl.flock(f, fcntl.LOCK_EX); "
    fails = hold + "print('pid', os.getpid(), flush=True); report_failure(3)"
    complains = "time.sleep(1)\n" + hold + "print('it is gone', file=sys.stderr, flush=True)"
    began = time.monotonic()
    processes = start(fails, complains)
    found = [process.communicate(timeout=30)[1] for process in processes]
    assert time.monotonic() - began < 10
    assert [process.returncode for process in processes] == [3, 3]
    for errors in found:
        assert "process 0 (pid" in errors and "ended with exit code 3" in errors
        assert "it is gone" not in errors


def test_a_machine_that_disappears_is_named(start):
    # Its supervisor goes as well, and says nothing.
    processes = start(WAIT, WAIT)
    child = pid_of_child(processes[1])
    pid_of_child(processes[0])
    processes[1].kill()
    ((code, (line,)), _) = ends(processes)
    assert code == 128 + signal.SIGKILL
    assert "process 1 (" in line and "is gone" in line
    if sys.platform == "linux":  # the child ends with its supervisor
        with pytest.raises(ProcessLookupError):
            for _ in range(100):
                os.kill(child, 0)
                time.sleep(0.05)


def test_the_machine_of_process_0_is_named_when_it_disappears(start):
    processes = start(WAIT, WAIT)
    for process in processes:
        pid_of_child(process)
    processes[0].kill()
    _, (code, (line,)) = ends(processes)
    assert code == 128 + signal.SIGKILL
    assert "process 0 (127.0.0.1) is gone" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_child(number):
    code = (
        f"import signal, sys\nsignal.signal({number:d}, lambda *_: sys.exit({128 + number}))\n"
        "print('ready', flush=True)\nsignal.pause()"
    )

    async def run():
        output = asyncio.subprocess.PIPE
        start = asyncio.create_subprocess_exec
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", partial(start, stdout=output))
            info = ProcessInfo(0, 1, "127.0.0.1:1000")
            child = await Child.start(info, [sys.executable, "-c", code], os.environ)
        await child.process.stdout.readline()
        os.kill(os.getpid(), number)
        await child.end()
        return child.exit()

    ended = asyncio.run(run())
    assert ended.code == 128 + number
    assert ended.expected
    assert f"was stopped by {number.name}" in ended.sentence


def test_sigterm_reaches_the_child_and_is_no_failure(start):
    stop = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    # The others learn of it in their own way, and need a moment.
    processes = start(stop + WAIT, "time.sleep(2)\nsys.exit(143)")
    pid_of_child(processes[0])
    pid_of_child(processes[1])
    time.sleep(0.3)  # until the handler is there
    processes[0].send_signal(signal.SIGTERM)
    assert ends(processes) == [(143, []), (143, [])]


@pytest.mark.parametrize(
    "index, missing",
    [(0, "of 3 processes these were not started: 1, 2"), (1, "process 0 does not answer at")],
)
def test_waiting_for_a_process_is_reported_and_ends(index, missing):
    program = [sys.executable, "-c", IMPATIENT + SUPERVISE, str(index), "3", str(free_port())]
    done = subprocess.run([*program, HEAD + WAIT], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    waiting, end = done.stderr.split("\n", 1)
    assert waiting.startswith(f"process {index} of 3: still waiting after 0 s: {missing}")
    assert missing in end
