"""One writer a directory."""

import os
import weakref
from pathlib import Path

from stillbox.errors import UserError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock, and there nothing is guarded
    fcntl = None  # type: ignore[assignment]


class DirectoryLock:
    """Keeps other processes from writing into a directory for as long as it is held.

    The operating system lets go of it when the process ends, however it ends: a killed run leaves
    nothing behind that would have to be removed by hand.

    Args:
        directory: an existing folder.

    Raises:
        UserError: another process holds it.
    """

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        # Also when the owner is forgotten: a notebook may train twice in one process.
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
                fix="wait for it to end, or take another --model-dir",
            ) from error
        except OSError:
            return  # a file system without locks, as some network folders are: nothing is guarded
        os.ftruncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()}".encode())
