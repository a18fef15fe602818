"""Supervises the processes of a job: when one ends, all end, with a message that names it.

A process that is killed leaves the others in the middle of a collective, where they wait for
minutes and then end with a library's stack trace. Every process of a job therefore runs as the
child of a small one that does not start JAX: it notices the end of its child at once and reports it
over a separate connection. The supervisor of process 0 listens on the port after the job's.

A process that fails reports it and then waits to be killed: while its connections are open the
other processes notice nothing and print no errors of their own.

A job succeeds when all its processes do. Otherwise all are stopped. No data are lost: checkpoints
are complete or absent.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, takewhile
from typing import Any, Self

from stillbox.devices.announcing import report_moments, say_aside, still_waiting
from stillbox.devices.launcher import ProcessInfo
from stillbox.errors import UserError

# Environment variable of a supervised process: the descriptor that it reports its failure to.
SUPERVISED = "STILLBOX_SUPERVISED"

# Exit codes of a success, of Ctrl-C, of SIGTERM and of SIGHUP.
EXPECTED_CODES = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)

# Time to finish writing a checkpoint before the process is killed.
_KILL_SECONDS = 10.0
# How long a failed process waits to be killed before it ends by itself.
_EXIT_SECONDS = 20.0

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ProcessExit:
    """How a process ended."""

    index: int
    code: int
    """Its exit code; negative: the number of the signal that killed it."""
    sentence: str
    """Which process, and how."""
    alone: bool = False
    """Whether it ended without the others, which then wait for it."""

    @property
    def expected(self) -> bool:
        """Whether it succeeded, or was asked to stop and all stop together."""
        return self.code in EXPECTED_CODES and not self.alone

    @property
    def may_be_consequence(self) -> bool:
        """Whether another's end may have caused it: a collective's error, or an abort."""
        return self.code in (1, -signal.SIGABRT)


def end_with_supervisor() -> None:
    """Makes this process end when its supervisor does (Linux)."""
    if SUPERVISED in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def report_failure(code: int) -> None:
    """Reports to the supervisor that this process has failed; does not return."""
    with contextlib.suppress(OSError, ValueError):
        os.write(int(os.environ[SUPERVISED]), bytes([code]))
        time.sleep(_EXIT_SECONDS)
    os._exit(code)


@dataclass
class Child:
    """The process that does the work."""

    info: ProcessInfo
    process: asyncio.subprocess.Process
    failure: asyncio.Future[int]
    """The exit code that it reports, if it fails."""

    @classmethod
    async def start(
        cls, info: ProcessInfo, command: Sequence[str], environment: Mapping[str, str]
    ) -> Self:
        """Starts it; from then on it is sent this process's SIGTERM, SIGINT and SIGHUP."""
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *command, env={**environment, SUPERVISED: str(writing)}, pass_fds=(writing,)
        )
        os.close(writing)
        failure: asyncio.Future[int] = loop.create_future()

        def read() -> None:
            loop.remove_reader(reading)
            # Empty where the process has ended, and its end of the pipe with it.
            if code := os.read(reading, 1):
                failure.set_result(code[0])
            os.close(reading)

        loop.add_reader(reading, read)
        child = cls(info, process, failure)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Under nohup both processes ignore SIGHUP.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, child.send, number)
        return child

    async def end(self) -> None:
        """Waits until it has ended or reported its failure."""
        ending = asyncio.create_task(self.process.wait())
        await asyncio.wait((ending, self.failure), return_when=asyncio.FIRST_COMPLETED)

    @property
    def code(self) -> int:
        """Its exit code, once it has ended."""
        return self.failure.result() if self.failure.done() else int(self.process.returncode or 0)

    def exit(self) -> ProcessExit:
        """Returns how it ended."""
        who = f"process {self.info.index} (pid {self.process.pid} on {socket.gethostname()})"
        how = f"ended with exit code {self.code}, see its output"
        if self.code < 0:
            how = f"was killed by {signal.Signals(-self.code).name}"
        elif self.code in EXPECTED_CODES[1:]:
            how = f"was stopped by {signal.Signals(self.code - 128).name}"
        return ProcessExit(self.info.index, self.code, f"{who} {how}", self.failure.done())

    async def stop(self) -> None:
        """Ends it; it may be waiting for a process that has ended."""
        # Only process 0 writes checkpoints. It ends by itself when the others are gone.
        if self.info.index == 0 and not self.failure.done():
            self.send(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.end(), _KILL_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def send(self, number: int) -> None:
        """Sends it a signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


# Seconds after which a process reports that it waits for another to start, and gives up.
_FIRST_REPORT_SECONDS, _JOIN_SECONDS = 30.0, 300.0
_CONNECT_SECONDS = 10.0
_HEARTBEAT_SECONDS = 5.0
_SILENCE_SECONDS = 30.0
# How long to wait for more reports: the first may be of a process that another has brought down.
_REPORT_SECONDS = 1.0

Message = dict[str, Any]
Report = Callable[[ProcessExit], Awaitable[None]]


def supervise(info: ProcessInfo, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a process of a job and ends it when another one fails; returns an exit code.

    Args:
        info: this process.
        command: what is run.
        environment: its variables.
    """
    return asyncio.run(_Supervisor(info).run(command, environment))


@dataclass
class _Supervisor:
    """The supervisor of one process."""

    info: ProcessInfo
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the job is to be stopped."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all processes have ended as expected."""
    failure: Message = field(default_factory=dict)
    """The cause: its sentence, its exit code."""
    exits: dict[int, ProcessExit] = field(default_factory=dict)
    """Of process 0 only: the processes that have ended."""
    connections: dict[int, StreamWriter] = field(default_factory=dict)
    """Of process 0 only: to the others."""

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        async with self._connected() as report:
            child = await Child.start(self.info, command, environment)
            failing = asyncio.create_task(self.failed.wait())
            ending = asyncio.create_task(child.end())
            await asyncio.wait((failing, ending), return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                await report(child.exit())
                finishing = asyncio.create_task(self.finished.wait())
                await asyncio.wait((failing, finishing), return_when=asyncio.FIRST_COMPLETED)
        if self.failed.is_set():
            await child.stop()
            print(f"stillbox: {self.failure['sentence']}", file=sys.stderr, flush=True)
            code = int(self.failure["code"])
            return 128 - code if code < 0 else code or 1
        return child.code

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Report]:
        """Connects with the others; yields the function that reports the end of this process."""
        host, _, number = self.info.coordinator.rpartition(":")
        port = int(number) + 1
        if self.info.index == 0:
            # A job on one machine needs no connections from outside.
            interface = host if host.startswith("127.") else None
            server = await asyncio.start_server(self._serve, interface, port)
            joining = asyncio.create_task(self._wait_for_all())
            try:
                yield self._record
                if self.failed.is_set():
                    await asyncio.sleep(_REPORT_SECONDS)  # for the others to print it too
            finally:
                joining.cancel()
                server.close()
            return
        reader, writer = await self._connect(host, port)
        await _send(writer, {"index": self.info.index, "name": socket.gethostname()})
        listening = asyncio.create_task(self._listen(reader, host))
        beating = asyncio.create_task(_send_heartbeats(writer))
        try:
            yield lambda end: _send(writer, {"end": asdict(end)})
        finally:
            listening.cancel()
            beating.cancel()
            writer.close()

    def _print_waiting(self, seconds: float, why: str) -> None:
        who = f"process {self.info.index} of {self.info.count}"
        say_aside(f"{who}: {still_waiting(seconds, why)}")

    # ---- process 0 ------------------------------------------------------------------------------

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        hello = await _receive(reader)
        if hello is None or "index" not in hello:
            writer.close()
            return
        index = int(hello["index"])
        self.connections[index] = writer
        beating = asyncio.create_task(_send_heartbeats(writer))
        try:
            while (message := await _receive(reader)) is not None:
                if "end" in message:
                    await self._record(ProcessExit(**message["end"]))
            if index not in self.exits:
                sentence = f"process {index} ({hello['name']}) is gone: its machine does not answer"
                await self._record(ProcessExit(index, -signal.SIGKILL, sentence))
        except asyncio.CancelledError:
            pass  # the job has ended; asyncio would print the cancellation
        finally:
            beating.cancel()
            writer.close()

    async def _wait_for_all(self) -> None:
        for before, moment in pairwise(_join_moments()):
            await asyncio.sleep(moment - before)
            missing = sorted(set(range(1, self.info.count)) - set(self.connections))
            if not missing:
                return
            which = ", ".join(map(str, missing))
            sentence = f"of {self.info.count} processes these were not started: {which}"
            if moment < _JOIN_SECONDS:
                self._print_waiting(moment, sentence)
        await self._record(ProcessExit(missing[0], -signal.SIGKILL, sentence))

    async def _record(self, end: ProcessExit) -> None:
        failed_before = any(not other.expected for other in self.exits.values())
        self.exits.setdefault(end.index, end)
        if end.expected:
            if len(self.exits) == self.info.count and not failed_before:
                await self._send_all({"finished": True})
                self.finished.set()
        elif not failed_before:
            await asyncio.sleep(_REPORT_SECONDS)
            failures = [one for one in self.exits.values() if not one.expected]
            cause = min(failures, key=lambda one: one.may_be_consequence)  # the earliest of equals
            message = {"sentence": f"{cause.sentence}; the job has ended", "code": cause.code}
            await self._send_all({"failed": message})
            self._fail(message)

    async def _send_all(self, message: Message) -> None:
        for writer in self.connections.values():
            with contextlib.suppress(OSError):
                await _send(writer, message)

    # ---- the others -----------------------------------------------------------------------------

    async def _connect(self, host: str, port: int) -> tuple[StreamReader, StreamWriter]:
        silence = f"process 0 does not answer at {host}:{port}"
        attempt = asyncio.create_task(_connect_when_there(host, port))
        for before, moment in pairwise(_join_moments()):
            await asyncio.wait((attempt,), timeout=moment - before)
            if attempt.done():
                return attempt.result()
            if moment < _JOIN_SECONDS:
                self._print_waiting(moment, silence)
        attempt.cancel()
        raise UserError(
            silence,
            where="--coordinator",
            fix="start process 0 too, and open this port and the one below to the others",
        )

    async def _listen(self, reader: StreamReader, host: str) -> None:
        while (message := await _receive(reader)) is not None:
            if "failed" in message:
                self._fail(message["failed"])
            if "finished" in message:
                self.finished.set()
        if not self.finished.is_set():
            sentence = f"process 0 ({host}) is gone: its machine does not answer"
            self._fail({"sentence": f"{sentence}; the job has ended", "code": -signal.SIGKILL})

    def _fail(self, failure: Message) -> None:
        self.failure = self.failure or failure
        self.failed.set()


def _join_moments() -> Iterator[float]:
    """Yields 0, the seconds at which a wait for the others is reported, and those of its end."""
    yield 0.0
    yield from takewhile(lambda one: one < _JOIN_SECONDS, report_moments(_FIRST_REPORT_SECONDS))
    yield _JOIN_SECONDS


async def _connect_when_there(host: str, port: int) -> tuple[StreamReader, StreamWriter]:
    while True:
        try:
            # Otherwise a machine that drops packets would cause a wait of minutes.
            return await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_SECONDS)
        except OSError:  # which a timeout is, too
            await asyncio.sleep(0.2)


async def _send_heartbeats(writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while True:
            await _send(writer, {"alive": True})
            await asyncio.sleep(_HEARTBEAT_SECONDS)


async def _send(writer: StreamWriter, message: Message) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def _receive(reader: StreamReader) -> Message | None:
    """Returns the next message; None after the last one or after a silence."""
    try:
        line = await asyncio.wait_for(reader.readline(), _SILENCE_SECONDS)
        return dict(json.loads(line)) if line else None
    except (OSError, TimeoutError, ValueError):
        return None
