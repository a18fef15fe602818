"""Batches that other processes make.

Python runs one thread of a process at a time, so that one process prepares some 1,200 images a
second of 300 pixels at most, on any number of processors. The arrays of a batch are in memory that
both processes share: nothing is copied. A batch is a pure function of its number, and no result
depends on who made it.
"""

import contextlib
import mmap
import os
import sys
import tempfile
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, NamedTuple

import numpy as np

from stillbox.boxes.structures import Batch
from stillbox.errors import UserError
from stillbox.experiment.imports import import_parts
from stillbox.inputs.batching import BatchMaker, Job, Memory
from stillbox.records.parallel import how_it_ended, start_process
from stillbox.records.source import Report
from stillbox.references import Setting
from stillbox.system import PASSES_OPEN_FILES, Connection

_FIELD = "data.processes"


@dataclass(frozen=True)
class InputProcesses:
    """Processes that make batches.

    Args:
        count: number of processes.
        open: makes the loader of a process; it and its arguments are pickled.
        imports: files and modules of parts that the arguments need, as for `import_parts`.
        prepare: called in each process before `open`; pickled likewise.
    """

    count: int
    open: Callable[[], BatchMaker]
    imports: tuple[str, ...] = ()
    prepare: Callable[[], object] | None = None

    def make(
        self, loader: BatchMaker, steps: Iterable[int], *, most_bytes: int, ahead: int
    ) -> Iterator[Batch]:
        """Yields the batches of these numbers in order, and counts them in `loader`.

        Args:
            most_bytes: size of the largest batch.
            ahead: batches that are requested before they are needed.

        Raises:
            UserError: a record is bad and the policy is `fail`, a process ends early, or the system
                shares no memory with them.
        """
        if not PASSES_OPEN_FILES:
            problem = f"{sys.platform} shares no memory of batches between processes"
            raise UserError(problem, where=_FIELD, fix=f"use threads: {Setting(_FIELD, 0)}")
        with contextlib.ExitStack() as stack:
            started = [
                stack.enter_context(contextlib.closing(_Process(most_bytes)))
                for _ in range(self.count)
            ]
            for process in started:
                process.begin(self, loader.dataset.source.fingerprint())
            asked: deque[_Process] = deque()
            for step, process in zip(steps, cycle(started), strict=False):
                process.ask(step)
                asked.append(process)
                if len(asked) > ahead:
                    yield asked.popleft().take(loader)
            for process in started:
                process.ask(None)
            while asked:
                yield asked.popleft().take(loader)


class _Made(NamedTuple):
    """The answer of a process to a request for a batch."""

    memory: int
    """Number of the memory that holds the batch."""
    canvas: tuple[int, int]
    stats: dict[str, int]
    """Counts since the batch before."""
    reports: list[Report]


class _Process:
    """A process that makes batches, on the side of the process of training."""

    def __init__(self, most_bytes: int) -> None:
        self._size = most_bytes
        self._shared: list[mmap.mmap] = []
        # Numbers of memory that no array uses.
        self._free: deque[int] = deque()
        self._connection, theirs = Pipe()
        with theirs:
            # An augmentation that computes with jax must not take the accelerator.
            self._process = start_process(__name__, theirs, env={"JAX_PLATFORMS": "cpu"})

    def begin(self, processes: InputProcesses, fingerprint: str) -> None:
        """Sends what the process needs to make batches."""
        with self._ending():
            self._connection.send(processes.imports)
            self._connection.send(processes.prepare)
            self._connection.send((processes.open, fingerprint, self._size))

    def ask(self, step: int | None) -> None:
        """Requests a batch; None: there are no more."""
        with self._ending():
            if step is None:
                self._connection.send(None)
                return
            if self._free:
                self._connection.send((step, self._free.popleft()))
                return
            self._connection.send((step, len(self._shared)))
            with _anonymous_file(self._size) as file:
                self._shared.append(mmap.mmap(file.fileno(), self._size))
                send_handle(self._connection, file.fileno(), self._process.pid)

    def take(self, loader: BatchMaker) -> Batch:
        """Receives the batch that was requested first."""
        with self._ending():
            kind, content = self._connection.recv()
        if kind == "refused":
            raise content
        if kind == "failed":
            raise RuntimeError(f"a process of {_FIELD} failed:\n{content}")
        made = _Made(*content)
        loader.stats.add(made.stats)
        for report in made.reports:
            loader.dataset.source.report(*report)
        memory = np.frombuffer(self._shared[made.memory], np.uint8)
        # All arrays of the batch, XLA's too, refer to this one.
        weakref.finalize(memory, self._free.append, made.memory).atexit = False
        return Batch(*loader.shape(made.canvas).arrays_in(memory))

    def close(self) -> None:
        """Ends the process; arrays of batches stay valid."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            problem = f"a process that makes batches {how_it_ended(self._process.wait())}"
            fix = f"take fewer processes, {Setting(_FIELD, 0)} for none"
            raise UserError(problem, where=_FIELD, fix=fix) from None


def _anonymous_file(size: int) -> IO[bytes]:
    """Returns a file without a name; its content ends with its last user.

    Linux keeps it in memory, where the limit of /dev/shm, 64 MB in containers, does not apply.
    """
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("stillbox-batch"), "r+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.truncate(size)
    return file


def _serve(connection: Connection) -> None:
    """Makes the batches that the process of training requests, until it closes the connection."""
    with contextlib.suppress(EOFError, ConnectionError):  # training has ended
        try:
            _make_all(connection)
        except (EOFError, ConnectionError):
            raise
        except UserError as error:
            connection.send(("refused", error))
        except Exception:
            connection.send(("failed", traceback.format_exc()))
        # Until the other side closes it: it may still send requests.
        while os.read(connection.fileno(), 2**16):
            pass


def _make_all(connection: Connection) -> None:
    import_parts(connection.recv())
    prepare = connection.recv()
    if prepare is not None:
        prepare()
    opening, fingerprint, size = connection.recv()
    loader: BatchMaker = opening()
    source = loader.dataset.source
    if source.fingerprint() != fingerprint:
        problem = "the record files changed while training started"
        raise UserError(problem, where=source.where, fix="run this again")
    reports = source.reports = deque()
    shared: list[Memory] = []
    numbers: deque[int] = deque()

    def jobs() -> Iterator[Job]:
        while (asked := connection.recv()) is not None:
            step, number = asked
            if number == len(shared):
                handle = recv_handle(connection)
                shared.append(np.frombuffer(mmap.mmap(handle, size), np.uint8))
                os.close(handle)
            numbers.append(number)
            yield Job(step, shared[number])

    for batch in loader.make(jobs()):
        heard = [reports.popleft() for _ in range(len(reports))]
        made = _Made(numbers.popleft(), batch.input_size, loader.stats.take(), heard)
        # As a tuple: here the class belongs to the module `__main__`.
        connection.send(("batch", tuple(made)))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
