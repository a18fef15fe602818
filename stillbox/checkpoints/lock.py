"""Locks a directory for one writer."""

import os
import weakref
from contextlib import suppress
from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.files import open_in_place

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock: no lock is taken
    fcntl = None  # type: ignore[assignment]


class DirectoryLock:
    """An exclusive lock of a directory, held until `release` or the end of the process.

    The operating system releases it however the process ends.

    Args:
        directory: an existing folder.

    Raises:
        UserError: another process holds it, or the name of its file is a link.
    """

    def __init__(self, directory: Path) -> None:
        self._file = open_in_place(directory / ".lock", os.O_RDWR)
        # Also released by garbage collection: a notebook may train twice in one process.
        self.release = weakref.finalize(self, os.close, self._file)
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._file, 100).decode() or "another process"
            self.release()
            raise UserError(
                f"{holder} is writing into this directory",
                where=str(directory),
                fix="wait for it to end, or choose another model directory",
            ) from error
        except OSError:
            return  # some network file systems have no locks
        # It is locked without the number too, on a full disk.
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.write(self._file, f"process {os.getpid()}".encode())
