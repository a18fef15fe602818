"""What the operating system offers, and what stands for it on a system that lacks it.

Modules and functions that Windows lacks are called here only: `make lint` checks all other modules
as on Windows.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import msvcrt
    from multiprocessing.connection import PipeConnection as Connection
else:
    import fcntl
    import resource
    from multiprocessing.connection import Connection as Connection

# Number of the signal that no process can catch; Windows has no such signal.
KILLED = 9
if sys.platform == "win32":
    TERMINAL_CLOSED = signal.SIGBREAK
else:
    TERMINAL_CLOSED = signal.SIGHUP
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, TERMINAL_CLOSED)
PASSES_OPEN_FILES = sys.platform != "win32"
"""Whether a process can give an open file to another one through a connection."""
LIMITS_PROCESSORS = sys.platform == "linux"
"""Whether a process can be limited to some processors."""


# ---- files and folders --------------------------------------------------------------------------

# Of `renameat2`: AT_FDCWD, RENAME_EXCHANGE.
_HERE, _EXCHANGE = -100, 2
# Windows refuses others to read a locked byte: this one lies behind the content of small files.
_LOCKED_BYTE = 2**31 - 2
_HELD = PermissionError if sys.platform == "win32" else BlockingIOError
_SEEKING = threading.Lock()


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Returns bytes of an open file from an offset on; its position stays."""
    if sys.platform != "win32":
        return os.pread(descriptor, size, offset)
    with _SEEKING, _sought(descriptor, offset):
        return os.read(descriptor, size)


@contextmanager
def _sought(descriptor: int, offset: int) -> Iterator[None]:
    """Sets the position of an open file while it is entered."""
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, offset, os.SEEK_SET)
    try:
        yield
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


def open_folder(folder: Path, flags: int = 0) -> int | None:
    """Returns a descriptor of a folder, to lock or to sync it; None: the system has none."""
    if sys.platform == "win32":
        return None
    return os.open(folder, os.O_RDONLY | flags)


def try_lock(descriptor: int | None) -> bool | None:
    """Locks an open file or folder until it is closed, and returns whether it is locked now.

    None: the file system has no locks, as some network file systems, or the system has no such
    descriptor.
    """
    if descriptor is None:
        return None
    try:
        if sys.platform == "win32":
            with _sought(descriptor, _LOCKED_BYTE):
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except _HELD:
        return False
    except OSError:
        return None
    return True


def remove_unheld(path: Path) -> None:
    """Removes a file, unless a process holds it locked.

    Raises:
        OSError: it is gone, a link, or another user's; under Windows also if a process has it open.
    """
    if sys.platform == "win32":
        path.unlink()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if try_lock(descriptor):
            path.unlink()
    finally:
        os.close(descriptor)


def exchange_names(first: Path, other: Path) -> bool:
    """Exchanges the names of two folders in one step, and returns whether the system can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    return not rename(_HERE, os.fsencode(first), _HERE, os.fsencode(other), _EXCHANGE)


def lacks_names(folder: Path) -> bool:
    """Returns whether the disk of a folder can hold no more files (inodes)."""
    if sys.platform == "win32":
        return False
    disk = os.statvfs(folder)
    return bool(disk.f_files) and not disk.f_favail


def user_id() -> int | None:
    """Returns the number of the user of this process; None: owners of files have no numbers."""
    if sys.platform == "win32":
        return None
    return os.geteuid()


# ---- open files and connections -----------------------------------------------------------------


def allow_open_files() -> None:
    """Raises the limit of open files as far as this process may.

    Process 0 of a job has two connections to each of the others, and 1,024 files are the usual
    limit. Without it gloo ends all processes at about 450.
    """
    if sys.platform != "win32":
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # macOS names no limit and has one.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def open_files_left() -> int | None:
    """Returns how many files this process may open besides the present ones; None: no limit."""
    if sys.platform != "win32":
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allowed != resource.RLIM_INFINITY:
            return allowed - len(list(Path("/dev/fd").iterdir()))
    return None


def allow_rebinding(bound: socket.socket) -> None:
    """Lets a server take the port of an earlier one, of which connections are still closing.

    Windows does so without the option, with which two servers could have one port.
    """
    if sys.platform != "win32":
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def passed_on(connection: Connection) -> dict[str, Any]:
    """Returns arguments of `Popen`: the process has the connection, and Ctrl-C does not reach it.

    There `Connection(number)` with the number of `connection.fileno()` opens it.
    """
    handle = connection.fileno()
    if sys.platform != "win32":
        return {"pass_fds": (handle,), "start_new_session": True}
    os.set_handle_inheritable(handle, True)
    return {
        "startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]}),
        "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP,
    }


# ---- Ctrl-C -------------------------------------------------------------------------------------


def hold_interrupts() -> None:
    """Lets Ctrl-C wait, also for a program that takes the place of this one."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def admit_interrupts() -> None:
    """Ends `hold_interrupts`."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


# ---- processors and memory ----------------------------------------------------------------------


def allowed_processors() -> int:
    """Returns how many processors the system allows this process."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def fewer_processors(threads: int) -> Iterator[None]:
    """Lets processes that start in the block use so many processors, if the system can; 0: all."""
    if sys.platform != "linux" or not threads:
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def glibc_version() -> tuple[int, ...]:
    """Returns the version of glibc; nothing where the C library is another."""
    if sys.platform == "win32":
        return ()
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except ValueError:
        return ()
    return tuple(map(int, version.split(".")[:2])) if name == "glibc" else ()


def installed_memory() -> int:
    """Returns the bytes of memory of this machine."""
    if sys.platform != "win32":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # MEMORYSTATUSEX: its size and a share, 32 bits each, and seven numbers of 64 bits.
    status = (ctypes.c_ulonglong * 8)(64)
    ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
    return status[1]


def resident_bytes() -> int | None:
    """Returns the resident memory of this process; None where the system does not tell."""
    if sys.platform == "win32":
        return _process_memory()[1]
    return _linux_status("VmRSS")


def peak_bytes() -> int:
    """Returns the most resident memory of this process since it began its program.

    `getrusage`, for systems other than Linux and Windows, counts the program that started the
    process, too.
    """
    if sys.platform != "win32":
        # macOS counts bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return _linux_status("VmHWM") or usage * unit
    return _process_memory()[0]


def _linux_status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    values = (line.split() for line in lines.splitlines() if line.startswith(f"{name}:"))
    return next((int(value) * 1024 for _, value, *_ in values), None)


def _process_memory() -> tuple[int, int]:
    """Returns the peak and the present resident bytes, under Windows."""
    if sys.platform != "win32":
        return 0, 0
    # PROCESS_MEMORY_COUNTERS: its size and a count, 32 bits each, and eight numbers of 64 bits.
    counters = (ctypes.c_ulonglong * 9)(72)
    kernel = ctypes.windll.kernel32
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    kernel.K32GetProcessMemoryInfo(process, counters, 72)
    return counters[1], counters[2]
