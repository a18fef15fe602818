"""Writes files and folders completely or not at all, and never through links.

A folder that the user names may be a link, but links in it, as in an untrusted model directory,
are not followed. A new folder is `.NAME.stillbox-partial` beside the target until it is complete.
Its writer holds a lock, which the system releases when the process ends; the next writer in the
same place removes folders without a lock.
"""

import errno
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stillbox.errors import UserError
from stillbox.object_storage import url_of
from stillbox.printing import size_text
from stillbox.system import exchange_names, lacks_names, open_folder, remove_unheld, try_lock

_IN_PLACE = os.O_CREAT
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    _IN_PLACE |= getattr(os, _name, 0)


def refuse_links(path: Path, *, below: Path) -> None:
    """Refuses a path below a folder, which may be a link, that leaves it through a link or `..`.

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


def refuse_url(path: Path) -> None:
    """Refuses a place for results that is a URL, of which a path would make a folder here."""
    if url := url_of(path):
        problem = "results are written into a folder of this machine"
        raise UserError(problem, where=url, fix="give a folder, and copy it when it is complete")


def make_folder(folder: Path, *, below: Path) -> Path:
    """Makes a folder with those above it and returns it.

    Raises:
        UserError: see `refuse_links` and `refuse_url`.
    """
    refuse_url(folder)
    refuse_links(folder, below=below)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def create_file(path: Path) -> BinaryIO:
    """Opens a new file for writing; a link or file of its name is replaced, not followed."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def open_in_place(path: Path, flags: int) -> int:
    """Opens a file for changes in place, makes it if absent, and returns its descriptor.

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
    """Removes a file, a link, or a folder with all it holds."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _not_there(path: Path, why: str) -> UserError:
    fix = "remove it, or choose another folder; the folder itself that you name may be a link"
    return UserError(f"nothing is written there: {why}", where=str(path), fix=fix)


def write_whole(path: Path, content: bytes, *, below: Path | None = None) -> Path:
    """Writes a file under a temporary name and renames it; makes its folder if it is absent.

    A link of this name is replaced. No link leads out of the folder `below`, by default the file's
    folder.

    Raises:
        UserError: the folder cannot be made or written to, or see `refuse_url`.
    """
    refuse_url(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        make_folder(path.parent, below=below or path.parent)
        with create_file(partial) as file:
            try_lock(file.fileno())
            file.write(content)
        return replace_file(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        needs = f"it needs {size_text(len(content))}"
        raise not_written(path, error, needs, len(content)) from error


def remove_partial_files(folder: Path) -> None:
    """Removes what killed processes have left of `write_whole`: files that nobody holds locked."""
    for leftover in folder.glob(".*.partial"):
        if _PARTIAL_FILE.fullmatch(leftover.name):
            with suppress(OSError):
                remove_unheld(leftover)


def replace_file(finished: Path, path: Path) -> Path:
    """Gives a finished file its name, in place of an older file or link; returns the path.

    Raises:
        OSError: the name is taken by a device, a pipe, a socket or a folder.
    """
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EEXIST, "it is a device, a pipe or a socket")
    return finished.replace(path)


def not_written(path: Path, error: OSError, needs: str = "", size: int = 0) -> UserError:
    """Returns the error for a file or folder; `needs` is a phrase with its `size` in bytes."""
    problem = f"cannot be written: {error.strerror or error}"
    problem = problem + lack_of_room(path.parent, error, needs, size)
    return UserError(
        problem, where=str(path), fix="choose another folder, or make room on its disk"
    )


def lack_of_room(folder: Path, error: OSError, needs: str = "", size: int = 0) -> str:
    """Returns what is known about a full disk, not about a quota, as the end of a sentence."""
    parts = [needs] * bool(needs)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            free = shutil.disk_usage(folder).free
            room = f"{size_text(free)} are free in {folder}"
            if lacks_names(folder):
                parts.append(f"{folder} can hold no more files (inodes), whatever their size")
            elif size and free >= size:
                parts.append(f"{room}, of which a quota or the file system itself withholds some")
            else:
                parts.append(room)
    return "".join(f"; {part}" for part in parts)


_PARTIAL, _OLD = ".stillbox-partial", ".stillbox-old"
# For the lock of a folder.
_ATTEMPTS, _SECONDS = 3, 0.05
_FULL = os.strerror(errno.ENOSPC)
_FOLDER_ALONE = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_PARTIAL_FILE = re.compile(r"\..+\.\d+\.\d+\.partial", re.ASCII | re.DOTALL)


def files_below(folder: Path) -> list[str]:
    """Returns the paths of everything but folders; links are not followed."""
    paths = []
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if Path(root, name).is_symlink()]
        paths += [Path(root, name).relative_to(folder).as_posix() for name in [*names, *links]]
    return sorted(paths)


@contextmanager
def new_folder(
    target: Path,
    check: Callable[[], object] = lambda: None,
    *,
    written: Callable[[Path], Collection[str]] = files_below,
) -> Iterator[Path]:
    """Yields an empty folder that replaces `target` at the end; after an error nothing has changed.

    Args:
        target: the folder, which need not exist.
        check: called as soon as no other process can write the folder.
        written: returns the files of an older folder, by their paths below it, that this program
            wrote; all others stay.

    Raises:
        UserError: another process writes it, it is the current folder, the disk takes no more, or
            a new file has the name of one that stays.
    """
    real = target.resolve()
    if Path.cwd().is_relative_to(real):
        problem = "this is the current folder or one above it, which cannot be replaced"
        raise UserError(problem, where=str(target), fix="give the name of a new folder")
    old = real.with_name(f".{real.name}{_OLD}")
    with partial_folder(real) as partial:
        check()
        yield partial
        if real.is_dir():
            _keep_others(real, partial, written(real))
        if exchange_names(partial, real):
            shutil.rmtree(partial, ignore_errors=True)
            return
        if real.exists():
            real.rename(old)
        try:
            partial.rename(real)
        except BaseException:
            with suppress(FileNotFoundError):
                old.rename(real)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _keep_others(old: Path, new: Path, written: Collection[str]) -> None:
    """Puts what a folder holds beside own files into another one too."""
    for name in files_below(old):
        if name in written:
            continue
        try:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(old / name, new / name)
        except (FileExistsError, NotADirectoryError) as error:
            problem = f"{name} would be replaced, and this program did not write it"
            fix = "move it away, or give another folder"
            raise UserError(problem, where=str(old), fix=fix) from error


def link_or_copy(source: Path, target: Path) -> None:
    """Gives a file a second name, or a copy where there are no hard links.

    Raises:
        FileExistsError: the name is taken.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):  # the file system has no hard links
        shutil.copy2(source, target, follow_symlinks=False)


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
        _close(descriptor)


def _claim(partial: Path, target: Path) -> int | None:
    locked: bool | None = False
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            partial.mkdir(exist_ok=True)
            descriptor = open_folder(partial, _FOLDER_ALONE)
            locked = try_lock(descriptor)
            # The former owner may have renamed or removed the folder before it was locked.
            if locked and _is_open_as(descriptor, partial):
                for leftover in partial.iterdir():
                    remove_tree(leftover)
                return descriptor
            if locked is None and not any(partial.iterdir()):
                return descriptor
            _close(descriptor)
        # Another one may hold it for a moment, to see whether it is a leftover.
        time.sleep(_SECONDS)
    raise UserError(
        "another process is writing it at this moment",
        where=str(target),
        fix="wait for it to end, or choose another folder"
        + f"; if there is none, remove {partial}: this disk has no locks" * (locked is None),
    )


def _is_open_as(descriptor: int | None, path: Path) -> bool:
    if descriptor is None:
        return path.is_dir()
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def _clean(parent: Path, partial: Path) -> None:
    """Removes what killed writers have left, and restores what one had moved aside."""
    for leftover in parent.glob(f".*{_PARTIAL}"):
        if leftover != partial:
            _remove_unheld_folder(leftover)
    for old in parent.glob(f".*{_OLD}"):
        target = old.with_name(old.name.removeprefix(".").removesuffix(_OLD))
        writer = old.with_name(f".{target.name}{_PARTIAL}")
        if writer != partial and writer.exists():
            continue  # a process is replacing it at this moment
        with suppress(OSError):
            if target.exists():
                shutil.rmtree(old)
            else:
                old.rename(target)


def _remove_unheld_folder(leftover: Path) -> None:
    """Removes what no process holds locked; it may be gone, or belong to another user."""
    with suppress(OSError):
        descriptor = open_folder(leftover, _FOLDER_ALONE)
        try:
            if try_lock(descriptor):
                shutil.rmtree(leftover, ignore_errors=True)
        finally:
            _close(descriptor)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


@contextmanager
def _not_written(target: Path, partial: Path) -> Iterator[None]:
    """Names the target in errors, in place of the hidden folder or, for a full disk, of no file."""
    try:
        yield
    except UserError as error:
        hidden, shown = str(partial), str(target)
        if hidden not in str(error.what) + str(error.where):
            raise
        where = error.where and error.where.replace(hidden, shown)
        problem = error.what.replace(hidden, shown)
        raise UserError(problem, where=where, fix=error.fix) from error
    except Exception as error:
        full = _FULL in str(error)  # TensorFlow raises its own error
        if not full and not (isinstance(error, OSError) and error.errno and not error.filename):
            raise
        reason = error if isinstance(error, OSError) else OSError(errno.ENOSPC, _FULL)
        written = sum(file.stat().st_size for file in partial.rglob("*") if file.is_file())
        needs = f"{size_text(written)} were written"
        raise not_written(target, reason, needs) from error
