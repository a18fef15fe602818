"""Settings of the C library's allocator.

libtpu is silenced on machines without a TPU, and unchanged on others.

The processors of a process, alone and beside others on its machine.
"""

import os
import signal
import subprocess
import sys

import pytest

from stillbox.devices import process
from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.process import (
    binding_warning,
    input_threads,
    keep_freed_memory,
    own_processors,
    restart_with_large_pages,
    silence_libtpu,
)
from tests.checking.ahead_of_time.programs import needs_libtpu

glibc = pytest.mark.skipif(not process.glibc_version(), reason="another C library")

# Takes and frees 256 MiB twice, and counts the pages that came from the system the second time.
PAGES = """
import resource, sys
import numpy as np
from stillbox.devices.process import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
np.ones(2**25)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(2**25)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# Takes and frees 256 MiB, and prints the resident MiB with it kept and with it released.
RELEASE = """
import os
import numpy as np
from stillbox.devices.process import keep_freed_memory, release_freed_memory
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
assert keep_freed_memory()
np.ones(2**25)
before = resident()
release_freed_memory()
print(before, resident())
"""

# Prints before and after the restart: what comes before it is printed twice.
RESTART = """
import os, sys
print("started with", os.environ.get("GLIBC_TUNABLES"), *sys.argv[1:], flush=True)
from stillbox.devices.process import restart_with_large_pages
restart_with_large_pages()
print("goes on")
"""


def _untuned():
    tuned = ("MALLOC_", "GLIBC_TUNABLES")
    return {key: value for key, value in os.environ.items() if not key.startswith(tuned)}


def _output(code, *words, **variables):
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(
        command, env=_untuned() | variables, check=True, capture_output=True, text=True
    )
    return done.stdout


@glibc
def test_freed_memory_is_kept():
    faults = {word: int(_output(PAGES, word)) for word in ("keep", "return")}
    # 65,536 pages of 4 KiB, or 128 where the system has given large ones.
    assert faults["return"] >= 100
    assert faults["keep"] < faults["return"] / 10


@glibc
def test_freed_memory_is_released():
    before, after = map(int, _output(RELEASE).split())
    assert after < before - 200


@glibc
@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("MALLOC_ARENA_MAX", "2", False),
        ("GLIBC_TUNABLES", "", False),
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", True),
    ],
)
def test_an_allocator_that_a_user_configures_is_not_changed(monkeypatch, name, value, kept):
    for key in set(os.environ) - set(_untuned()):
        monkeypatch.delenv(key)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(process.ctypes, "CDLL", lambda _: _Library())
    assert keep_freed_memory() == kept


class _Library:
    def mallopt(self, number, value):
        return 1


@pytest.fixture
def restarts(monkeypatch, tmp_path):
    """Commands that are started in place of this one, on a Linux that gives large pages."""
    for key in set(os.environ) - set(_untuned()):
        monkeypatch.delenv(key)
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # puts the variable back after the test
    monkeypatch.delenv("GLIBC_TUNABLES")
    monkeypatch.setattr(process, "_PAGES", tmp_path / "enabled")
    process._PAGES.write_text("always [madvise] never\n")
    monkeypatch.setattr(process, "glibc_version", lambda: (2, 36))
    commands = []
    monkeypatch.setattr(process.os, "execv", lambda path, words: commands.append(words))
    return commands


def test_the_same_command_is_started_once(restarts):
    restart_with_large_pages()
    assert restarts == [[sys.executable, *sys.orig_argv[1:]]]
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    restart_with_large_pages()
    assert len(restarts) == 1


@pytest.mark.parametrize(
    "prepare",
    [
        lambda patch: patch.setenv("MALLOC_ARENA_MAX", "2"),
        lambda patch: patch.setenv("GLIBC_TUNABLES", ""),
        lambda patch: process._PAGES.write_text("[always] madvise never"),
        lambda patch: process._PAGES.write_text("always madvise [never]"),
        lambda patch: process._PAGES.unlink(),
        lambda patch: patch.setattr(process, "glibc_version", lambda: ()),
        lambda patch: patch.setattr(process, "glibc_version", lambda: (2, 34)),
    ],
    ids=["arenas", "tunables", "always", "never", "no pages", "no glibc", "old glibc"],
)
def test_where_nothing_is_to_be_gained_there_is_no_restart(restarts, monkeypatch, prepare):
    prepare(monkeypatch)
    restart_with_large_pages()
    assert restarts == []


def test_a_command_that_cannot_be_started_goes_on(restarts, monkeypatch):
    def refuse(path, words):
        raise PermissionError(path)

    monkeypatch.setattr(process.os, "execv", refuse)
    restart_with_large_pages()
    # Ctrl-C is handled again.
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_ctrl_c_is_handled_after_the_restart_whatever_the_name_of_the_program(
    restarts, monkeypatch
):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    restart_with_large_pages()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    assert restarts == []


@pytest.mark.skipif(not process._on_demand(), reason="large pages are not given on demand")
def test_words_and_environment_come_through_the_restart():
    lines = _output(RESTART, "--step", "a b").splitlines()
    assert lines == [
        "started with None --step a b",
        "started with glibc.malloc.hugetlb=1 --step a b",
        "goes on",
    ]


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
        "from stillbox.devices.process import silence_libtpu; silence_libtpu();"
        "import jax; print(jax.devices()[0].platform, flush=True); input()"
    )
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    runs = [subprocess.Popen([sys.executable, "-c", code], text=True, **options) for _ in range(2)]
    # Each waits for its line until both have started.
    started = [run.stdout.readline() for run in runs]
    said = [run.communicate("\n") for run in runs]
    assert started == ["cpu\n", "cpu\n"]
    assert said == [("", ""), ("", "")]


FOUR_ON_THIS_MACHINE = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-node1-31159@1",
}


@pytest.fixture
def machine(monkeypatch):
    def machine(count, allowed, variables=()):
        monkeypatch.setattr(os, "cpu_count", lambda: count)
        monkeypatch.setattr(process, "allowed_processors", lambda: allowed)
        for name, value in dict(variables).items():
            monkeypatch.setenv(name, value)

    return machine


@pytest.mark.parametrize(
    ("count", "allowed", "variables", "share"),
    [
        (96, 96, {}, 96),
        (96, 12, {}, 12),
        # 96 / 4 = 24 of its own, bound or not; bound to one socket of two it may use 48.
        (96, 96, FOUR_ON_THIS_MACHINE, 24),
        (96, 48, FOUR_ON_THIS_MACHINE, 24),
        (96, 1, FOUR_ON_THIS_MACHINE, 1),
        (2, 2, FOUR_ON_THIS_MACHINE, 1),
        # The environment of a launcher is incomplete.
        (96, 96, FOUR_ON_THIS_MACHINE | {"PMIX_NAMESPACE": ""}, 96),
    ],
)
def test_processes_of_a_machine_share_its_allowed_processors(
    machine, count, allowed, variables, share
):
    machine(count, allowed, variables)
    assert own_processors() == share


def test_input_threads_are_as_configured_or_one_for_each_processor(machine):
    machine(96, 12)
    assert [input_threads(workers) for workers in (None, 0, 3, 64)] == [12, 0, 3, 64]
    machine(96, 96)
    assert input_threads(None) == 32


@pytest.mark.parametrize("allowed, warned", [(1, True), (23, True), (24, False), (96, False)])
def test_a_process_bound_to_less_than_its_part_is_warned_about(machine, allowed, warned):
    machine(96, allowed)
    place = ProcessInfo(0, 8, "node1:53000", local_index=0, local_count=4, launcher="Open MPI")
    warning = binding_warning(place)
    assert ("Open MPI" in warning and f"{allowed} of its 24 processors" in warning) == warned
    assert bool(warning) == warned


def test_own_processors_of_this_machine():
    assert 1 <= own_processors() <= os.cpu_count()
