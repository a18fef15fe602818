"""Mapping over many records on threads, with flat memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_MOST_WORKERS = 8


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
