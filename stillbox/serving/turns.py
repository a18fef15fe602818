"""Turns of connections: how the requests of all of them share the event loop.

h11 takes microseconds for each event, whatever its size. A read of 256 KiB in chunks of one byte
has 87,000 events, so uvicorn would look at no other connection for a second.
"""

import asyncio
import re
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import h11
from uvicorn.protocols.http.flow_control import FlowControl

# Events of one turn, and seconds of all turns between two looks of the loop at its sockets.
_EVENTS, _SECONDS = 32, 0.001
# No header or trailer is longer than h11's 16 KiB and one such piece.
_PIECE = 4096
_MOST_LINES = 128
_HEADER_END = re.compile(rb"\n\r?\n")
# Chunks of any size, and bytes for each further one.
_FREE_CHUNKS, _CHUNK = 1024, 128


class PacedConnection(h11.Connection):
    """Parses a few events in each turn; refuses a header of many lines, and many tiny chunks."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self._arrived = bytearray()
        self._events, self._chunks = 0, 0.0
        self.fault = ""
        """Why a request is refused that h11 would take."""
        self.more = False
        """Whether events may be left for the next turn."""

    def receive_data(self, data: bytes) -> None:
        """Keeps bytes for the next turns."""
        self._arrived += data

    def begin_turn(self) -> None:
        """Allows some further events."""
        self._events, self.more = _EVENTS, False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Returns the next event; `NEED_DATA` also at the end of a turn."""
        while self._events:
            self._events -= 1
            self._check_header()
            event = super().next_event()
            self._count_chunks(event)
            if event is not h11.NEED_DATA or not self._arrived:
                return event
            super().receive_data(bytes(self._arrived[:_PIECE]))
            del self._arrived[:_PIECE]
        self.more = True
        return h11.NEED_DATA

    def _check_header(self) -> None:
        if self.their_state is h11.IDLE:
            header = _HEADER_END.split(self.trailing_data[0], 1)[0]
            if header.count(b"\n") >= _MOST_LINES:
                self._refuse(f"the header of a request has at most {_MOST_LINES} lines")

    def _count_chunks(self, event: object) -> None:
        if isinstance(event, h11.Request):
            self._chunks = _FREE_CHUNKS
        elif isinstance(event, h11.Data):
            self._chunks += len(event.data) / _CHUNK - 1
            if self._chunks < 0:
                self._refuse(f"the body comes in chunks of less than {_CHUNK} bytes")

    def _refuse(self, fault: str) -> None:
        self.fault = fault
        raise h11.RemoteProtocolError(fault)


class PacedFlow(FlowControl):
    """Reads nothing from a client while earlier bytes wait for a turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._waits = False

    def pause_reading(self) -> None:
        """Reads no more until `resume_reading`."""
        self.read_paused = True
        self._apply()

    def resume_reading(self) -> None:
        """Reads, unless bytes wait."""
        self.read_paused = False
        self._apply()

    def wait(self, *, waits: bool) -> None:
        """Notes whether bytes wait."""
        self._waits = waits
        self._apply()

    def _apply(self) -> None:
        if self.read_paused or self._waits:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class Turn:
    """The place of one connection: `run` takes a turn, and returns whether it wants another."""

    def __init__(self, run: Callable[[], bool]) -> None:
        self.run = run
        self.after = 0.0
        self.waits = False


class Turns:
    """Gives turns to connections for a millisecond in each round of the event loop.

    The one with the least time so far is next, and a newcomer is before all that have waited after
    a turn: start-time fair queueing (Goyal, Vin and Cheng, 1996).
    """

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Turn]] = []
        self._number = count()
        self._now = 0.0
        self._scheduled = False

    def ask(self, turn: Turn) -> None:
        """Queues a connection, unless it waits."""
        if not turn.waits:
            turn.waits, turn.after = True, max(turn.after, self._now)
            heappush(self._queue, (turn.after, next(self._number), turn))
            self._schedule()

    def _schedule(self) -> None:
        if self._queue and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        end = time.perf_counter() + _SECONDS
        self._scheduled = False
        try:
            while self._queue and time.perf_counter() < end:
                self._now, _, turn = heappop(self._queue)
                self._take(turn)
        finally:
            self._schedule()

    def _take(self, turn: Turn) -> None:
        turn.waits, began = False, time.perf_counter()
        more = turn.run()
        turn.after += time.perf_counter() - began
        if more:
            self.ask(turn)
