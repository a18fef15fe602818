"""Watches over the processes of a job, so that the end of one is the end of all, and says whose.

A process that is killed leaves the others in the middle of a collective, where they wait for
minutes and then end with the stack of a library. So every process of a job runs as the child of a
small one that starts no jax: it sees the end of its child at once, and tells the others over a
connection of its own. The one of process 0 listens, on the port after the job's.

A job ends in order when all its processes do. Otherwise all are stopped and one sentence names the
process that began it. Nothing is lost by that: checkpoints are whole or not there.
"""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from stillbox.devices.launcher import Place
from stillbox.devices.supervised import Child, End
from stillbox.errors import UserError

# When one that waits for another to start says so; at the last it gives up.
_JOIN_SECONDS = (30.0, 60.0, 120.0, 240.0, 300.0)
_REACH_SECONDS = 10.0
_BEAT_SECONDS = 5.0
_SILENCE_SECONDS = 30.0
# How long to listen for another report, since the first may be of a process that the end of
# another has brought down.
_REPORT_SECONDS = 1.0

Message = dict[str, Any]


def supervise(place: Place, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a process of a job and ends it when another one fails; returns an exit code.

    Args:
        place: of this process in the job.
        command: what is run.
        environment: its variables.
    """
    return asyncio.run(_Supervisor(place).run(command, environment))


@dataclass
class _Supervisor:
    """One process and what it hears of the others."""

    place: Place
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the job is to be stopped."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all have ended in order."""
    failure: Message = field(default_factory=dict)
    """What began it: its sentence, its exit code."""
    ends: dict[int, End] = field(default_factory=dict)
    """Of process 0 only: who has ended so far."""
    links: dict[int, StreamWriter] = field(default_factory=dict)
    """Of process 0 only: the others."""

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        async with self._connection() as tell:
            child = await Child.start(self.place, command, environment)
            failing = asyncio.create_task(self.failed.wait())
            ending = asyncio.create_task(child.end())
            await asyncio.wait((failing, ending), return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                await tell(child.describe())
                over = asyncio.create_task(self.over.wait())
                await asyncio.wait((failing, over), return_when=asyncio.FIRST_COMPLETED)
        if self.failed.is_set():
            await child.stop()
            print(f"stillbox: {self.failure['sentence']}", file=sys.stderr, flush=True)
            code = int(self.failure["code"])
            return 128 - code if code < 0 else code or 1
        return child.code

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """Connects with the others; yields how the end of this process is told."""
        host, _, port = self.place.coordinator.rpartition(":")
        if self.place.index == 0:
            # Nobody from outside has anything to say to a job on one machine.
            inside = host if host.startswith("127.") else None
            server = await asyncio.start_server(self._serve, inside, int(port) + 1)
            late = asyncio.create_task(self._wait_for_all())
            try:
                yield self._note
                if self.failed.is_set():
                    await asyncio.sleep(_REPORT_SECONDS)  # the others hear of it, and say so
            finally:
                late.cancel()
                server.close()
            return
        reader, writer = await _connect(self.place, host, int(port) + 1)
        await _send(writer, _introduction(self.place))
        listening = asyncio.create_task(self._listen(reader))
        beating = asyncio.create_task(_beat(writer))

        async def tell(end: End) -> None:
            await _send(writer, {"end": end.__dict__})

        try:
            yield tell
        finally:
            listening.cancel()
            beating.cancel()
            writer.close()

    # ---- process 0 ------------------------------------------------------------------------------

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        hello = await _receive(reader)
        if hello is None or "index" not in hello:
            writer.close()
            return
        index = int(hello["index"])
        self.links[index] = writer
        beating = asyncio.create_task(_beat(writer))
        try:
            while (message := await _receive(reader)) is not None:
                if "end" in message:
                    await self._note(End(**message["end"]))
            if index not in self.ends:
                sentence = f"process {index} ({hello['name']}) is gone: its machine does not answer"
                await self._note(End(index, -signal.SIGKILL, sentence))
        except asyncio.CancelledError:
            pass  # the job is over; asyncio would print that somebody cancelled this
        finally:
            beating.cancel()
            writer.close()

    async def _wait_for_all(self) -> None:
        for before, moment in pairwise((0.0, *_JOIN_SECONDS)):
            await asyncio.sleep(moment - before)
            missing = sorted(set(range(1, self.place.count)) - set(self.links))
            if not missing:
                return
            which = ", ".join(map(str, missing))
            sentence = f"of {self.place.count} processes these were not started: {which}"
            if moment < _JOIN_SECONDS[-1]:
                _say_waiting(self.place, moment, sentence)
        await self._note(End(missing[0], -signal.SIGKILL, sentence))

    async def _note(self, end: End) -> None:
        first = not any(not other.orderly for other in self.ends.values())
        self.ends.setdefault(end.index, end)
        if end.orderly:
            if len(self.ends) == self.place.count and all(e.orderly for e in self.ends.values()):
                await self._tell_all({"over": True})
                self.over.set()
            return
        if first:
            await asyncio.sleep(_REPORT_SECONDS)
            failures = [one for one in self.ends.values() if not one.orderly]
            cause = min(failures, key=lambda one: one.may_follow)  # min keeps the earliest
            message = {"sentence": f"{cause.sentence}; the job has ended", "code": cause.code}
            await self._tell_all({"failed": message})
            self._fail(message)

    async def _tell_all(self, message: Message) -> None:
        for writer in self.links.values():
            with contextlib.suppress(OSError):
                await _send(writer, message)

    # ---- the others -----------------------------------------------------------------------------

    async def _listen(self, reader: StreamReader) -> None:
        while (message := await _receive(reader)) is not None:
            if "failed" in message:
                self._fail(message["failed"])
            if "over" in message:
                self.over.set()
        if not self.over.is_set() and not self.failed.is_set():
            host, _, _ = self.place.coordinator.rpartition(":")
            sentence = f"process 0 ({host}) is gone: its machine does not answer"
            self._fail({"sentence": f"{sentence}; the job has ended", "code": -signal.SIGKILL})

    def _fail(self, failure: Message) -> None:
        self.failure = self.failure or failure
        self.failed.set()


def _introduction(place: Place) -> Message:
    return {"index": place.index, "name": socket.gethostname()}


async def _connect(place: Place, host: str, port: int) -> tuple[StreamReader, StreamWriter]:
    silence = f"process 0 does not answer at {host}:{port}"
    attempt = asyncio.create_task(_reach(host, port))
    for before, moment in pairwise((0.0, *_JOIN_SECONDS)):
        await asyncio.wait((attempt,), timeout=moment - before)
        if attempt.done():
            return attempt.result()
        if moment < _JOIN_SECONDS[-1]:
            _say_waiting(place, moment, silence)
    attempt.cancel()
    raise UserError(
        silence,
        where="--coordinator",
        fix="start process 0 too, and let the others reach this port and the one below",
    )


async def _reach(host: str, port: int) -> tuple[StreamReader, StreamWriter]:
    while True:
        try:
            # A machine that swallows what is sent to it would otherwise be asked for minutes.
            return await asyncio.wait_for(asyncio.open_connection(host, port), _REACH_SECONDS)
        except OSError:  # a timeout is one, too
            await asyncio.sleep(0.2)


def _say_waiting(place: Place, seconds: float, why: str) -> None:
    who = f"process {place.index} of {place.count}"
    print(f"{who}: still waiting after {seconds:.0f} s: {why}", file=sys.stderr, flush=True)


async def _beat(writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while True:
            await _send(writer, {"alive": True})
            await asyncio.sleep(_BEAT_SECONDS)


async def _send(writer: StreamWriter, message: Message) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def _receive(reader: StreamReader) -> Message | None:
    """Returns the next message; None if there will be none, because of an end or of silence."""
    try:
        line = await asyncio.wait_for(reader.readline(), _SILENCE_SECONDS)
        return dict(json.loads(line)) if line else None
    except (OSError, TimeoutError, ValueError):
        return None
