"""Writing: a file whole or not at all, and nothing through links.

A folder that the user names may hold links of somebody else, as an untrusted model directory does.
What is written below it stays there. The named folder itself may be a link.
"""

import errno
import os
import shutil
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stillbox.errors import UserError
from stillbox.printing import size_text

_IN_PLACE = os.O_CREAT
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    _IN_PLACE |= getattr(os, _name, 0)


def refuse_links(path: Path, *, below: Path) -> None:
    """Refuses a path that leaves a folder through a link, or through `..`.

    Args:
        path: need not exist; if it does not lie below the folder, nothing is refused.
        below: the folder, which may be a link.

    Raises:
        UserError: a part of the path after `below` is a symbolic link.
    """
    if not path.is_relative_to(below):
        return
    place = below
    for name in path.relative_to(below).parts:
        place = place / name
        if name == ".." or place.is_symlink():
            raise _not_there(place, "it is a symbolic link" if name != ".." else "it leads out")


def make_folder(folder: Path, *, below: Path) -> Path:
    """Makes a folder with those above it and returns it.

    Raises:
        UserError: see `refuse_links`.
    """
    refuse_links(folder, below=below)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def create_file(path: Path) -> BinaryIO:
    """Opens a new file for writing, in place of what has its name: a link is not followed, and the
    other names of a file keep its content."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def open_in_place(path: Path, flags: int) -> int:
    """Opens a file that is changed where it lies, made if absent; returns its descriptor.

    Args:
        path: the file.
        flags: of `os.open`, as `os.O_WRONLY | os.O_APPEND`.

    Raises:
        UserError: the name is a link, a file that has other names, or no regular file.
    """
    try:
        descriptor = os.open(path, flags | _IN_PLACE, 0o666)
    except OSError as error:
        if path.is_symlink():
            raise _not_there(path, "it is a symbolic link") from error
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    linked = "the file has other names (hard links), and would change under those too"
    raise _not_there(path, linked if stat.S_ISREG(status.st_mode) else "it is no regular file")


def append_file(path: Path) -> BinaryIO:
    """Opens a file for writing at its end; see `open_in_place`."""
    return os.fdopen(open_in_place(path, os.O_WRONLY | os.O_APPEND), "ab")


def remove_tree(path: Path) -> None:
    """Removes a folder with all it holds; of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _not_there(path: Path, why: str) -> UserError:
    return UserError(
        f"nothing is written there: {why}",
        where=str(path),
        fix="remove it, or choose another folder; the folder itself that you name may be a link",
    )


def write_whole(path: Path, content: bytes, *, below: Path | None = None) -> Path:
    """Writes a file under a temporary name and renames it, making its folder if need be.

    Args:
        path: the file; a link of this name is replaced and not followed.
        content: all of it.
        below: the folder that no link leads out of; None: that of the file.

    Raises:
        UserError: the folder cannot be made or written to.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        make_folder(path.parent, below=below or path.parent)
        with create_file(partial) as file:
            file.write(content)
        return partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        needs = f"it needs {size_text(len(content))}"
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
            free = f"{size_text(disk.f_bavail * disk.f_frsize)} are free in {folder}"
            if disk.f_files and not disk.f_favail:
                parts.append(f"{folder} can hold no more files (inodes), whatever their size")
            elif size and disk.f_bavail >= -(-size // disk.f_frsize):
                parts.append(f"{free}, of which a quota or the file system itself withholds some")
            else:
                parts.append(free)
    return "".join(f"; {part}" for part in parts)
