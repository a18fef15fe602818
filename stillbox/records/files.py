"""Writing a file whole or not at all."""

import errno
import os
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
        needs = f"it needs {describe_bytes(len(content))}"
        raise not_written(path, error, needs, len(content)) from error


def not_written(path: Path, error: OSError, needs: str = "", size: int = 0) -> UserError:
    """Returns the exception for a file or folder that could not be written.

    Args:
        path: the file.
        error: the reason.
        needs: how much room it takes, as in "it needs 3.2 MB".
        size: the same in bytes, if it is known.
    """
    return UserError(
        f"cannot be written: {error.strerror or error}"
        + lack_of_room(path.parent, error, needs, size),
        where=str(path),
        fix="choose another folder, or make room on its disk",
    )


def lack_of_room(folder: Path, error: OSError, needs: str = "", size: int = 0) -> str:
    """Returns what is known of a disk that takes no more, as the end of a sentence.

    Free space is named only where it is what lacks: a quota, inodes and a limit of a file's size
    leave it unused.
    """
    parts = [needs] * bool(needs)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            disk = os.statvfs(folder)
            free = f"{describe_bytes(disk.f_bavail * disk.f_frsize)} are free in {folder}"
            if disk.f_files and not disk.f_favail:
                parts.append(f"{folder} can hold no more files (inodes), whatever their size")
            elif size and disk.f_bavail >= -(-size // disk.f_frsize):
                parts.append(f"{free}, of which a quota or the file system itself withholds some")
            else:
                parts.append(free)
    return "".join(f"; {part}" for part in parts)


def describe_bytes(count: int) -> str:
    """Returns a number of bytes for people: `3.2 MB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
