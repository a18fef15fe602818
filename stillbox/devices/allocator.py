"""Settings of the C library's allocator, which a program on a CPU takes its arrays from.

A train step takes its temporary arrays anew: 1.3 GB for SSD MobileNet v1 in batches of 16. In pages
of 4 KiB Linux hands out 340,000 of them in every step, each filled with zeros.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

# Numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

_LARGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
"""Variable that makes glibc ask Linux for pages of 2 MiB, read at the start of a process alone."""

_LEAST_GLIBC = (2, 35)
_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_large_pages() -> None:
    """Starts this command again in the same process, in which arrays have pages of 2 MiB.

    A train step of SSD MobileNet v1 or SSD ResNet-34 on two cores takes 8 to 31 % less
    (benchmarks/README.md).

    Returns where nothing is to be gained: another C library or a glibc before 2.35, an allocator
    that the environment configures, a system that gives such pages to all processes or to none.
    """
    if _tuned() or os.environ.get(_LARGE_PAGES[0]) or not _on_demand():
        return
    os.environ[_LARGE_PAGES[0]] = _LARGE_PAGES[1]
    # Ctrl-C waits until the new interpreter can handle it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    # Without the restart the command is slower, and otherwise the same.
    with suppress(OSError):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory for the next step; False where it cannot.

    Arrays above 64 MB that threads of XLA take are returned to the system all the same.

    An allocator that is configured by the environment is left as it is.
    """
    if _tuned() or not _glibc():
        return False
    library = ctypes.CDLL(None)
    # -1: never trim; 0: map nothing by itself, because that is returned when freed.
    return bool(library.mallopt(_M_TRIM_THRESHOLD, -1) and library.mallopt(_M_MMAP_MAX, 0))


def release_freed_memory() -> None:
    """Returns freed memory to the system, on glibc.

    Compiling frees much of what it took: 9 GiB for the train step of SpineNet-190.
    """
    if _glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _tuned() -> bool:
    """Returns whether a user has configured the allocator."""
    name, value = _LARGE_PAGES
    own = any(key.startswith("MALLOC_") for key in os.environ)
    return own or os.environ.get(name, value) != value


def _on_demand() -> bool:
    """Returns whether Linux gives large pages to the processes that ask, and glibc can ask."""
    try:
        return _glibc() >= _LEAST_GLIBC and "[madvise]" in _PAGES.read_text()
    except OSError:
        return False


def _glibc() -> tuple[int, ...]:
    """Returns the version of glibc; nothing where the C library is another."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, ValueError):
        return ()
    return tuple(map(int, version.split(".")[:2])) if name == "glibc" else ()
