"""A process of a job, as it is seen by the one that watches over it, and how it speaks to that one.

A process that fails says so and stays until it is killed: as long as its connections are open the
others notice nothing, and do not fill the terminal with what they would say of it.
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

from stillbox.devices.launcher import Place

# Says to the child that somebody watches over it, and which descriptor takes its failure.
SUPERVISED = "STILLBOX_SUPERVISED"

# Exit codes that somebody asked for: done, Ctrl-C, SIGTERM.
ORDERLY = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)

# How long a process has for a checkpoint that is being written.
_KILL_SECONDS = 10.0
# How long one that has failed waits to be killed, in case nobody does it.
_FAREWELL_SECONDS = 20.0

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class End:
    """How a process ended."""

    index: int
    code: int
    """Its exit code; negative: the number of the signal that killed it."""
    sentence: str
    """Who, and how."""

    @property
    def orderly(self) -> bool:
        """Whether it was done, or stopped because somebody asked it to."""
        return self.code in ORDERLY

    @property
    def may_follow(self) -> bool:
        """Whether it may have ended because another did: by a collective's error, or by abort."""
        return self.code in (1, -signal.SIGABRT)


def end_with_supervisor() -> None:
    """Ends this process when the one that watches over it does (Linux); called by the child."""
    if SUPERVISED in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def fail_under_supervision(code: int) -> None:
    """Tells the one that watches over this process that it has failed; does not return."""
    with contextlib.suppress(OSError, ValueError):
        os.write(int(os.environ[SUPERVISED]), bytes([code]))
        time.sleep(_FAREWELL_SECONDS)
    os._exit(code)


@dataclass
class Child:
    """The process that does the work."""

    place: Place
    """In the job."""
    process: asyncio.subprocess.Process
    """Itself."""
    failure: asyncio.Future[int]
    """The exit code of which it spoke, if it did."""

    @classmethod
    async def start(
        cls, place: Place, command: Sequence[str], environment: Mapping[str, str]
    ) -> Self:
        """Starts it; SIGTERM and SIGINT to this process go on to it from then on."""
        loop = asyncio.get_running_loop()
        hears, speaks = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *command, env={**environment, SUPERVISED: str(speaks)}, pass_fds=(speaks,)
        )
        os.close(speaks)
        failure: asyncio.Future[int] = loop.create_future()

        def hear() -> None:
            loop.remove_reader(hears)
            # Nothing is read where the process is gone and its end of the pipe with it.
            if code := os.read(hears, 1):
                failure.set_result(code[0])
            os.close(hears)

        loop.add_reader(hears, hear)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _forward, process, number)
        return cls(place, process, failure)

    async def end(self) -> None:
        """Waits until it has ended, or says that it fails."""
        ending = asyncio.create_task(self.process.wait())
        await asyncio.wait((ending, self.failure), return_when=asyncio.FIRST_COMPLETED)

    @property
    def code(self) -> int:
        """Its exit code, once there is one."""
        return self.failure.result() if self.failure.done() else int(self.process.returncode or 0)

    def describe(self) -> End:
        """Returns how it ended."""
        who = f"process {self.place.index} (pid {self.process.pid} on {socket.gethostname()})"
        if self.code < 0:
            name = signal.Signals(-self.code).name
            return End(self.place.index, self.code, f"{who} was killed by {name}")
        sentence = f"{who} ended with exit code {self.code}, see what it said"
        return End(self.place.index, self.code, sentence)

    async def stop(self) -> None:
        """Ends it; it may be waiting for a process that is no more."""
        # Only the first one may be writing a checkpoint. It ends by itself, now or when it sees
        # that the others are gone.
        if self.place.index == 0 and not self.failure.done():
            _forward(self.process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.end(), _KILL_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


def _forward(child: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)
