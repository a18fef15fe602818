"""Settings of the C library's allocator."""

import os
import subprocess
import sys

import pytest

from stillbox.devices import allocator
from stillbox.devices.allocator import keep_freed_memory, restart_with_large_pages

glibc = pytest.mark.skipif(not allocator._glibc(), reason="another C library")

# Takes and frees 256 MiB twice, and counts the pages that came from the system the second time.
PAGES = """
import resource, sys
import numpy as np
from stillbox.devices.allocator import keep_freed_memory
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
from stillbox.devices.allocator import keep_freed_memory, release_freed_memory
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
from stillbox.devices.allocator import restart_with_large_pages
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
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: _Library())
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
    monkeypatch.setattr(allocator, "_PAGES", tmp_path / "enabled")
    allocator._PAGES.write_text("always [madvise] never\n")
    monkeypatch.setattr(allocator, "_glibc", lambda: (2, 36))
    commands = []
    monkeypatch.setattr(allocator.os, "execv", lambda path, words: commands.append(words))
    return commands


def test_the_same_command_is_started_once(restarts):
    restart_with_large_pages()
    assert restarts == [[sys.executable, *sys.orig_argv[1:]]]
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    restart_with_large_pages()
    assert len(restarts) == 1


@pytest.mark.parametrize(("name", "value"), [("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "")])
def test_a_configured_allocator_needs_no_restart(restarts, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    restart_with_large_pages()
    assert restarts == []


@pytest.mark.parametrize("pages", ["[always] madvise never", "always madvise [never]", None])
def test_a_system_that_is_not_asked_needs_no_restart(restarts, pages):
    if pages is None:
        allocator._PAGES.unlink()
    else:
        allocator._PAGES.write_text(pages)
    restart_with_large_pages()
    assert restarts == []


@pytest.mark.parametrize("version", [(), (2, 34)])
def test_a_library_that_cannot_ask_needs_no_restart(restarts, monkeypatch, version):
    monkeypatch.setattr(allocator, "_glibc", lambda: version)
    restart_with_large_pages()
    assert restarts == []


def test_a_command_that_cannot_be_started_goes_on(restarts, monkeypatch):
    def refuse(path, words):
        raise PermissionError(path)

    monkeypatch.setattr(allocator.os, "execv", refuse)
    restart_with_large_pages()


@pytest.mark.skipif(not allocator._on_demand(), reason="large pages are not given on demand")
def test_words_and_environment_come_through_the_restart():
    lines = _output(RESTART, "--step", "a b").splitlines()
    assert lines == [
        "started with None --step a b",
        "started with glibc.malloc.hugetlb=1 --step a b",
        "goes on",
    ]
