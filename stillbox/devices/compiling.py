"""Compilation that signals can end.

XLA compiles for minutes without a return to Python, and Python calls the handlers of signals in the
main thread, between two of its instructions. So another thread compiles. What a handler raises
leaves that thread behind; nothing can stop it but the end of the process.
"""

import os
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, NoReturn

from stillbox.devices.announcing import announcing

if TYPE_CHECKING:
    import jax

_NAME = "stillbox-compile"


class Compilation:
    """A traced program that is compiled in the background.

    Args:
        lowered: the program.
        name: of the program, as in "the train step".
    """

    def __init__(self, lowered: "jax.stages.Lowered", name: str) -> None:
        self._name = name
        self._compiled: Future[jax.stages.Compiled] = Future()
        # Not daemonic: an interpreter that ends while XLA compiles aborts.
        threading.Thread(target=self._compile, args=(lowered,), name=_NAME).start()

    def result(self) -> "jax.stages.Compiled":
        """Returns the compiled program, and prints every now and then that it takes long."""
        with announcing(lambda: f"compiling {self._name}"):
            return self._compiled.result()

    def _compile(self, lowered: "jax.stages.Lowered") -> None:
        try:
            self._compiled.set_result(lowered.compile())
        except BaseException as error:
            self._compiled.set_exception(error)


def end_process(code: int) -> NoReturn:
    """Ends the process without waiting for its threads.

    One may hang in a disk that does not answer. One may compile: the interpreter's own end would
    free the devices that it uses, and crash.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def compilation_left_behind() -> bool:
    """Whether a program is still being compiled that is no longer waited for."""
    return any(thread.name == _NAME for thread in threading.enumerate())
