"""Takes from this process what Windows lacks, and gives it the branches for Windows.

A plugin of pytest (`-p tests.as_on_windows`), and a module to import first. Libraries that stillbox
uses are imported before: they are what they are under Linux.
"""

import ctypes
import fcntl
import io
import multiprocessing.connection
import os
import shutil
import signal
import socket
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import cv2  # noqa: F401
import flax.nnx  # noqa: F401
import hotcoco  # noqa: F401
import httpx  # noqa: F401
import jax.experimental.multihost_utils
import jax.experimental.topologies
import matplotlib.figure  # noqa: F401
import numpy as np
import onnx  # noqa: F401
import onnxruntime  # noqa: F401
import optax  # noqa: F401
import rich.console  # noqa: F401
import starlette.testclient  # noqa: F401
import uvicorn  # noqa: F401
import xdist.plugin  # noqa: F401
from PIL import Image

_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
_NAMES = {
    os: "confstr fchmod fork forkpty fwalk geteuid getegid getgid getloadavg getpgid getuid "
    "killpg lchown memfd_create mkfifo mknod openpty pread preadv pwrite posix_fallocate "
    "sched_getaffinity sched_setaffinity setpgid setsid statvfs sync sysconf "
    "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK",
    signal: "pthread_kill pthread_sigmask SIG_BLOCK SIG_UNBLOCK SIGALRM SIGHUP SIGKILL SIGPIPE "
    "SIGUSR1 SIGUSR2 setitimer alarm pause",
    socket: "send_fds recv_fds",
}
_open, _flock, _LOCK = os.open, fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB


def _locking(descriptor: int, mode: int, size: int) -> None:
    """Locks a file, and fails as Windows does."""
    try:
        _flock(descriptor, _LOCK)
    except BlockingIOError as error:
        raise PermissionError(13, "Permission denied") from error


def _open_file(path: str, flags: int, *mode: int) -> int:
    """Opens a file, and no folder, as Windows."""
    if os.path.isdir(path):  # noqa: PTH112 - numbers of descriptors are paths too
        raise PermissionError(13, "Permission denied", str(path))
    return _open(path, flags, *mode)


class _Kernel(SimpleNamespace):
    """Functions that fill structures: 32 GiB of memory, and 3 and 2 GiB of this process."""

    def GlobalMemoryStatusEx(self, status: ctypes.Array) -> int:  # noqa: N802
        status[1], status[2] = 32 * 2**30, 20 * 2**30
        return 1

    def GetCurrentProcess(self) -> int:  # noqa: N802
        return -1

    def K32GetProcessMemoryInfo(self, process: object, counters: ctypes.Array, size: int) -> int:  # noqa: N802
        assert size == ctypes.sizeof(counters)
        counters[1], counters[2] = 3 * 2**30, 2 * 2**30
        return 1


def _take_away() -> None:
    jax.jit(lambda x: x + 1)(np.ones(2))  # starts what jax starts once
    Image.init()
    for name in _MODULES:
        sys.modules[name] = None
    for module, names in _NAMES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    signal.SIGBREAK = signal.SIGQUIT
    sys.modules["msvcrt"] = ModuleType("msvcrt")
    sys.modules["msvcrt"].__dict__.update(locking=_locking, LK_NBLCK=2)
    multiprocessing.connection.PipeConnection = multiprocessing.connection.Connection
    ctypes.windll = SimpleNamespace(kernel32=_Kernel())
    os.set_handle_inheritable = os.set_inheritable
    subprocess.STARTUPINFO = lambda **arguments: arguments
    subprocess.CREATE_NEW_PROCESS_GROUP = 0x200
    os.open = _open_file
    io._WindowsConsoleIO = type("_WindowsConsoleIO", (), {})
    shutil._use_fd_functions = False
    sys.platform = "win32"


_take_away()
