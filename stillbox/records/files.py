"""Writing a file whole or not at all."""

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from stillbox.errors import UserError


def write_whole(path: Path, content: bytes) -> Path:
    """Writes a file under a temporary name and renames it, making its folder if need be.

    Raises:
        UserError: the folder cannot be made or written to.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        return partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise not_written(path, error, f"it needs {describe_bytes(len(content))}") from error


def not_written(path: Path, error: OSError, needs: str) -> UserError:
    """Returns the exception for a file that could not be written.

    Args:
        path: the file.
        error: the reason.
        needs: how much room it takes, as in "it needs 3.2 MB".
    """
    room = ""
    with suppress(OSError):
        free = describe_bytes(shutil.disk_usage(path.parent).free)
        room = f"; {needs}, {free} are free in {path.parent}"
    return UserError(
        f"cannot be written: {error.strerror or error}{room}",
        where=str(path),
        fix="choose another folder, or make room on its disk",
    )


def describe_bytes(count: int) -> str:
    """Returns a number of bytes for people: `3.2 MB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
