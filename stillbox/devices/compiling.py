"""Compilation that signals can end.

XLA compiles for minutes without a return to Python, and Python calls the handlers of signals in the
main thread, between two of its instructions. So a thread compiles while the main thread waits. What
a handler raises leaves the thread behind; nothing can stop it but the end of the process.
"""

import os
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, NoReturn

from stillbox.devices.announcing import announcing

if TYPE_CHECKING:
    import jax

    from stillbox.experiment import schema

_NAME = "stillbox-compile"


def compile_program(
    lowered: "jax.stages.Lowered", what: str, settings: "schema.Devices"
) -> "jax.stages.Compiled":
    """Compiles a traced program, and prints every now and then that it takes long.

    Args:
        lowered: the program.
        what: its name, as in "compiling the train step".
        settings: where compiled programs are kept.
    """
    # Imported here: a process that supervises others does not need jax.
    from stillbox.devices.setup import use_cache_of

    use_cache_of(settings)
    with announcing(lambda: f"compiling {what}"):
        if threading.current_thread() is not threading.main_thread():
            return lowered.compile()
        compiled: Future[jax.stages.Compiled] = Future()

        def compile_it() -> None:
            try:
                compiled.set_result(lowered.compile())
            except BaseException as error:
                compiled.set_exception(error)

        # Daemonic: the interpreter does not wait for it at its end.
        threading.Thread(target=compile_it, name=_NAME, daemon=True).start()
        return compiled.result()


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
