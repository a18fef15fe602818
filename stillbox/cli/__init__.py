"""The command line. The docstring of a verb's module, or of its `add_VERB`, is its help.

Ctrl-C ends a program that has not begun its verb at once. Standard streams that are closed are
opened on nothing.
"""

import os
import signal
import sys
from types import FrameType

from stillbox.system import admit_interrupts


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"stillbox: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


def interrupt_by_exception() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual, but while JAX is being imported."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Compiled modules of JAX print an exception, and make an ImportError of it.
    if hasattr(sys.modules.get("jax"), "jit") or not _imports(frame):
        raise KeyboardInterrupt
    _end(number, frame)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def open_standard_streams() -> None:
    """Opens closed descriptors 0 to 2 on nothing: the next file would be one of them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            opened = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)
            setattr(sys, f"__{name}__", opened)


# Other packages are imported after this one and take a while; programs of others import it too.
_IS_PROGRAM = os.path.basename(sys.argv[0]) in ("stillbox", "stillbox.exe", "-m")  # noqa: PTH119
if _IS_PROGRAM:
    open_standard_streams()
if _IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
    # Blocked by a restart, see `restart_with_large_pages`.
    admit_interrupts()
