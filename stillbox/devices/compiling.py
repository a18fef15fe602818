"""Compilation that signals can end.

XLA compiles for minutes without a return to Python, and Python calls the handlers of signals in the
main thread, between two of its instructions. So another thread compiles. What a handler raises
leaves that thread behind; nothing can stop it but the end of the process.
"""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from stillbox.devices.announcing import announcing

if TYPE_CHECKING:
    import jax

_NAME = "stillbox-compile"
# JAX's name of the seconds that a program took to be compiled, less those to load it.
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"


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


@contextmanager
def saved_by_cache() -> Iterator[list[float]]:
    """Yields a list of the seconds that the cache of compiled programs saves while it is entered.

    Each program that is loaded adds the time that its compilation took.
    """
    from jax import monitoring

    saved = list[float]()

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _SAVED:
            saved.append(duration_secs)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield saved
    finally:
        monitoring.unregister_event_duration_listener(listen)


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
