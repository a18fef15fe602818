"""Threads and memory for the work of requests; large work does not delay small work."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Share:
    """A part of the memory of `Workers`, and the use of one thread at a time."""

    def __init__(self, workers: "Workers", size: int) -> None:
        self._workers, self._size = workers, size
        self._running = self._left = False

    async def run(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Runs a function in a thread, as soon as one is free."""
        await self._workers.threads.acquire()
        loop = asyncio.get_running_loop()
        self._running = True
        work = self._workers.pool.submit(function, *args)
        # Not when the request ends: a thread goes on after that, and needs its memory.
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self._end))
        return await asyncio.wrap_future(work)

    def shrink(self, size: int) -> None:
        """Gives back what exceeds a size."""
        if size < self._size:
            self._workers.give_back(self._size - size)
            self._size = size

    def leave(self) -> None:
        """Gives everything back once nothing runs."""
        self._left = True
        if not self._running:
            self.shrink(0)

    def _end(self) -> None:
        self._running = False
        self._workers.threads.release()
        if self._left:
            self.shrink(0)


class Workers:
    """A pool of threads with a budget of memory.

    Args:
        name: of the threads.
        threads: the most that run.
        memory: the budget, in bytes.
    """

    def __init__(self, name: str, threads: int, memory: int) -> None:
        self.pool = ThreadPoolExecutor(threads, name)
        # The pool's own queue would keep the images of requests that have ended.
        self.threads = asyncio.Semaphore(threads)
        self._memory = self._free = memory
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()

    @asynccontextmanager
    async def share(self, size: int) -> AsyncIterator[Share]:
        """Waits for a part of the memory; the smallest that are waited for come first.

        Args:
            size: in bytes; if it exceeds the budget, all of it.
        """
        size = min(size, self._memory)
        await self._take(size)
        share = Share(self, size)
        try:
            yield share
        finally:
            share.leave()

    def give_back(self, size: int) -> None:
        """Returns memory to the budget."""
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            size, _, granted = heapq.heappop(self._waiting)
            if not granted.cancelled():
                self._free -= size
                granted.set_result(None)

    async def _take(self, size: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size, next(self._number), granted))
        self.give_back(0)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self.give_back(size)
            raise
