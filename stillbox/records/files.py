"""Writing: a file or a folder whole or not at all, and nothing through links.

A folder that the user names may hold links of somebody else, as an untrusted model directory
does. What is written below it stays there. The named folder itself may be a link.

A new folder lies in `.NAME.stillbox-partial` beside the target until it is complete. Its writer
holds a lock of it, which the system releases when the process ends: a folder without a lock is a
leftover, and the next writer in the same place removes it.
"""

import errno
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stillbox.errors import UserError
from stillbox.printing import size_text

if sys.platform != "win32":
    import fcntl

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


_PARTIAL, _OLD = ".stillbox-partial", ".stillbox-old"
# For the lock of a folder.
_ATTEMPTS, _SECONDS = 3, 0.05
_FULL = os.strerror(errno.ENOSPC)
_FOLDER_ALONE = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def try_lock(descriptor: int) -> bool | None:
    """Locks an open file or folder until it is closed.

    Returns:
        Whether it is locked now; None if the file system has no locks, as some of the network.
    """
    if sys.platform == "win32":  # it has no flock
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def new_folder(target: Path, check: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """Yields an empty folder that replaces `target` at the end; after an error nothing has changed.

    Args:
        target: what it becomes; of a link, what it leads to.
        check: called when no other process can write it any more.

    Raises:
        UserError: another process writes it, it is the current folder, or the disk takes no more.
    """
    real = target.resolve()
    if Path.cwd().is_relative_to(real):
        raise UserError(
            "this is the current folder or one above it, which cannot be replaced",
            where=str(target),
            fix="give the name of a new folder",
        )
    old = real.with_name(f".{real.name}{_OLD}")
    with partial_folder(real) as partial:
        check()
        yield partial
        if real.exists():
            real.rename(old)
        try:
            partial.rename(real)
        except BaseException:
            with suppress(FileNotFoundError):
                old.rename(real)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target`, of which this process is the only writer.

    It is removed at the end, if it still has its name.

    Raises:
        UserError: another process writes it, or the disk takes no more.
    """
    partial = target.with_name(f".{target.name}{_PARTIAL}")
    with _not_written(target, partial):
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _claim(partial, target)
    try:
        with _not_written(target, partial):
            _clean(target.parent, partial)
            yield partial
    finally:
        if _is_open_as(descriptor, partial):
            shutil.rmtree(partial, ignore_errors=True)
        os.close(descriptor)


def _claim(partial: Path, target: Path) -> int:
    """Makes an empty folder, locks it and returns its descriptor."""
    locked: bool | None = False
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            partial.mkdir(exist_ok=True)
            descriptor = os.open(partial, os.O_RDONLY | _FOLDER_ALONE)
            locked = try_lock(descriptor)
            # Its former owner may have renamed or removed it before it was locked.
            if locked and _is_open_as(descriptor, partial):
                for leftover in partial.iterdir():
                    _remove(leftover)
                return descriptor
            if locked is None and not any(partial.iterdir()):
                return descriptor
            os.close(descriptor)
        # Another one may hold it for a moment, to see whether it is a leftover.
        time.sleep(_SECONDS)
    raise UserError(
        "another process is writing it at this moment",
        where=str(target),
        fix="wait for it to end, or choose another folder"
        + f"; if there is none, remove {partial}: this disk has no locks" * (locked is None),
    )


def _is_open_as(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def _clean(parent: Path, own: Path) -> None:
    """Removes what writers have left that are no more; brings back what one had set aside."""
    for leftover in parent.glob(f".*{_PARTIAL}"):
        # It may be gone by now, or another user's.
        with suppress(OSError), _opened(leftover) as descriptor:
            if leftover != own and try_lock(descriptor):
                shutil.rmtree(leftover, ignore_errors=True)
    for old in parent.glob(f".*{_OLD}"):
        target = old.with_name(old.name.removeprefix(".").removesuffix(_OLD))
        writer = old.with_name(f".{target.name}{_PARTIAL}")
        if writer != own and writer.exists():
            continue  # a process is replacing it at this moment
        with suppress(OSError):
            if target.exists():
                shutil.rmtree(old)
            else:
                old.rename(target)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | _FOLDER_ALONE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextmanager
def _not_written(target: Path, partial: Path) -> Iterator[None]:
    """Names the target if the disk takes no more, which some writers say without a file.

    Messages have the target in place of the hidden folder.
    """
    try:
        yield
    except UserError as error:
        hidden, shown = str(partial), str(target)
        if hidden not in str(error.what) + str(error.where):
            raise
        where = error.where and error.where.replace(hidden, shown)
        what = error.what.replace(hidden, shown)
        raise UserError(what, where=where, fix=error.fix) from error
    except Exception as error:
        full = _FULL in str(error)  # that of TensorFlow is no OSError
        if not full and not (isinstance(error, OSError) and error.errno and not error.filename):
            raise
        reason = error if isinstance(error, OSError) else OSError(errno.ENOSPC, _FULL)
        written = sum(file.stat().st_size for file in partial.rglob("*") if file.is_file())
        needs = f"{size_text(written)} were written"
        raise not_written(target, reason, needs) from error
