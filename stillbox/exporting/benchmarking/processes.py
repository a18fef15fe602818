"""A task in a process of its own: what a runtime does to its process does not end the table."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO

import jax

from stillbox.devices.process import keep_freed_memory
from stillbox.errors import UserError
from stillbox.evaluation.evaluator import ImageProgress
from stillbox.evaluation.runtimes import State
from stillbox.experiment.imports import import_parts
from stillbox.exporting.benchmarking.tasks import ExportTask, Measured, MeasureTask
from stillbox.extras import NotInstalledError

Task = ExportTask | MeasureTask


class TaskError(Exception):
    """A task has no result. The text is a sentence with the remedy; `state` is that of its row."""

    def __init__(self, text: str, state: State = "failed") -> None:
        self.state = state
        super().__init__(text)


def run_apart(
    task: Task, progress: ImageProgress, *, imports: tuple[str, ...] = (), threads: int = 0
) -> Measured | None:
    """Performs a task in a new process and returns its result.

    Args:
        imports: files and modules of parts, as for `import_parts`.
        threads: processors that the process may use; 0: those of this one.

    Raises:
        UserError: the task raises it.
        TaskError: a package is missing, the task fails, or its process ends before it is done.
    """
    ours, theirs = Pipe()
    # Runtimes write to the streams of the process, past Python's.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log, ours:
        with theirs, _fewer_processors(threads):
            process = _start(theirs, log)
        try:
            with contextlib.suppress(EOFError, OSError):  # it has ended
                ours.send(imports)
                ours.send(task)
                return _result(ours, progress)
            raise TaskError(_end(process.wait(), log))
        finally:
            process.kill()
            process.wait()


def _start(connection: Connection, log: IO[str]) -> "subprocess.Popen[bytes]":
    handle = connection.fileno()
    # It finds modules where this process does, and not in the current folder.
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)  # noqa: PTH109
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(handle)],
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=(handle,),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


@contextlib.contextmanager
def _fewer_processors(threads: int) -> Iterator[None]:
    """Lets a process that is started meanwhile use so many processors; 0: all."""
    if not threads or not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _result(connection: Connection, progress: ImageProgress) -> Measured | None:
    while True:
        kind, content = connection.recv()
        if kind == "progress":
            progress(*content)
        elif kind == "result":
            result: Measured | None = content
            return result
        elif kind == "refused":
            what, where, fix = content
            raise UserError(what, where=where, fix=fix)
        else:
            raise TaskError(content, kind)


def _end(code: int, log: IO[str]) -> str:
    """Returns a sentence about a process that ended before it had a result."""
    log.seek(0)
    last = next((line.strip() for line in reversed(log.readlines()) if line.strip()), "")
    how = f"its process ended with exit code {code}"
    if code < 0:
        how = f"its process was killed by {signal.Signals(-code).name}"
        # The kernel's choice where memory is short.
        how += " (is there enough memory?)" * (code == -signal.SIGKILL)
    return f"{how}; its last line: {last}" if last else how


def one_line(error: UserError) -> str:
    """Returns an error of the user as one line, its remedy behind it."""
    text = ": ".join(filter(None, (error.where, error.what)))
    return " ".join(f"{text}; {error.fix}".split() if error.fix else text.split())


def _serve(connection: Connection) -> None:
    """Performs the task that comes through a connection, and answers."""
    # Loading is measured, and a program that was compiled before would load in no time.
    jax.config.update("jax_enable_compilation_cache", False)
    keep_freed_memory()
    try:
        # The task may hold an experiment with parts of the user's.
        import_parts(connection.recv())
        task: Task = connection.recv()
        result = task.perform(lambda *done: connection.send(("progress", done)))
        connection.send(("result", result))
    except NotInstalledError as error:
        connection.send(("not installed", error.fix))
    except UserError as error:
        connection.send(("refused", (error.what, error.where, error.fix)))
    # The runtimes' classes differ.
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        connection.send(("failed", text))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
