"""Kills in simulation: from one call of the system on, a program changes no names any more."""

import os
import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from stillbox.records import files

_CALLS = ("replace", "rename", "link", "unlink", "rmdir")


class Killed(BaseException):
    """Raised by every call after the kill, so that no handler can tidy up."""


def kills(run: Callable[[], object]) -> Iterator[int]:
    """Runs a function with a kill before its first, second, ... change of a name; yields each time.

    The last run, which is not killed, yields nothing.
    """
    for last in count():
        with pytest.MonkeyPatch.context() as patch:
            _die_after(patch, last)
            try:
                run()
            except Killed:
                pass
            else:
                return
        yield last


def _die_after(patch: pytest.MonkeyPatch, last: int) -> None:
    done = count()

    def mortal(plain: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            if next(done) >= last:
                raise Killed
            return plain(*args, **options)

        return call

    for name in _CALLS:
        patch.setattr(os, name, mortal(getattr(os, name)))
    if sys.platform == "linux":
        patch.setattr(files, "exchange_names", mortal(files.exchange_names))
