"""Work beside the caller's: on threads, with flat memory, and in other processes."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Protocol, TypeVar

from stillbox.system import KILLED, Connection, passed_on

T = TypeVar("T")
R = TypeVar("R")
_MOST_WORKERS = 8


class OrderedMap(Protocol):
    """What applies a function to items: `ordered_map`, or the machines of a cluster."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yields `function(item)` in the order of the items."""


def ordered_map(function: Callable[[T], R], items: Iterable[T], workers: int = 0) -> Iterator[R]:
    """Yields `function(item)` in the order of the items, computed by `workers` threads.

    Few results wait at any time, unlike with `Executor.map`: a data set is larger than memory. 0
    workers are one for each core, at most 8.
    """
    workers = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
    pool, wait = ThreadPoolExecutor(workers), True
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except KeyboardInterrupt:
        wait = False  # for threads that may hang in a disk that does not answer
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)


def start_process(
    module: str,
    connection: Connection,
    *,
    env: Mapping[str, str] | None = None,
    log: IO[str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Runs a module as a program; its argument is the number of a connection.

    Unlike `multiprocessing` it does not run the caller's script again. Ctrl-C does not reach the
    process, which ends when the connection does.

    Args:
        env: variables that are added to the variables of this process.
        log: file for all that the process prints; None: the streams of this process.
    """
    # The program imports modules from the places of this process, not from the current folder.
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)  # noqa: PTH109
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(connection.fileno())],
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        **passed_on(connection),
    )


def how_it_ended(code: int) -> str:
    """Returns how a process ended, as `ended with exit code 1`."""
    if code >= 0:
        return f"ended with exit code {code}"
    # The kernel kills a process if memory is short.
    doubt = " (is there enough memory?)" * (code == -KILLED)
    return f"was killed by {signal.Signals(-code).name}{doubt}"
