"""A process of a job as its supervisor sees it, and how it reports its failure.

A process that fails reports it and then waits to be killed: while its connections are open the
other processes notice nothing and print no errors of their own.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from stillbox.devices.launcher import ProcessInfo

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
