"""Tasks of a benchmark that end their process, each in another way."""

import os
import signal
from dataclasses import dataclass

from stillbox.errors import UserError


@dataclass(frozen=True)
class Killed:
    """Prints, and is killed by a signal."""

    number: int = signal.SIGKILL

    def perform(self, progress):
        progress(1, 2)
        print("so far all is well", flush=True)
        os.kill(os.getpid(), self.number)


@dataclass(frozen=True)
class Raising:
    """Raises what no runtime of ours raises."""

    def perform(self, progress):
        raise LookupError("nothing\nhere")


@dataclass(frozen=True)
class Refusing:
    """Refuses its input."""

    def perform(self, progress):
        raise UserError("it is wrong", where="here", fix="mend it")


@dataclass(frozen=True)
class Counting:
    """Returns the processors that it may use."""

    def perform(self, progress):
        return len(os.sched_getaffinity(0))
