"""The one place where untrusted files are opened: regular files of a bounded size."""

import os
import stat
import weakref
import zipfile
from collections.abc import Collection
from io import BufferedReader
from pathlib import Path

from stillbox.errors import UserError
from stillbox.printing import printable_line
from stillbox.system import read_at

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
# Without O_NONBLOCK, opening a pipe blocks until somebody writes. Windows needs O_BINARY.
_FLAGS = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    _FLAGS |= getattr(os, _flag, 0)
# A member takes about a hundred bytes of an archive's directory.
_MOST_DIRECTORY_BYTES = 2**22


def named_path(path: str | Path) -> Path:
    """Returns a path of the user with `~` expanded; the file need not exist.

    Raises:
        UserError: the name is invalid, or cannot be looked up.
    """
    # `Path.expanduser` raises for unknown users.
    expanded = Path(os.path.expanduser(path))  # noqa: PTH111
    try:
        expanded.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise _unreadable(expanded, error, str(path), None) from error
    return expanded


def open_untrusted(
    path: str | Path,
    *,
    most: int | None,
    where: str | None = None,
    fix: str | None = None,
    inside: Path | None = None,
) -> BufferedReader:
    """Opens a regular file to read its bytes; the caller closes it.

    Pipes, devices, sockets and files of `/proc` are refused unread: they may have no end, and
    opening them can block or change something.

    Args:
        path: the file.
        most: greatest size in bytes; None for readers that take a bounded part at a time.
        where: the option or place that names it, for errors.
        fix: the remedy, for errors.
        inside: the folder that symbolic links may not lead out of.

    Raises:
        UserError: there is no such file, it cannot be read, it is no regular file, it is too large,
            or it lies outside of `inside`.
    """
    try:
        _refuse_kind(os.stat(path).st_mode, path, where, fix)  # noqa: PTH116 - no Path of bad names
        real = _real_inside(path, inside, where, fix) if inside is not None else path
        descriptor = os.open(real, _FLAGS)
        try:
            status = os.fstat(descriptor)
            # Once more: the name may be another file by now.
            _refuse_kind(status.st_mode, path, where, fix)
            if not status.st_size and read_at(descriptor, 1, 0):
                problem = f"{_name(path, where)} does not say how large it is"
                raise UserError(problem, where=where, fix=fix)
            if most is not None and status.st_size > most:
                problem = f"{_name(path, where)} has {status.st_size:,} bytes"
                raise UserError(
                    f"{problem}; such a file has {most:,} at most", where=where, fix=fix
                )
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, where, fix) from error


def read_untrusted(
    path: str | Path,
    *,
    most: int,
    where: str | None = None,
    fix: str | None = None,
    inside: Path | None = None,
) -> bytes:
    """Returns the bytes that a file has when it is opened, see `open_untrusted`.

    Raises:
        UserError: `open_untrusted` refuses it, or reading fails.
    """
    with open_untrusted(path, most=most, where=where, fix=fix, inside=inside) as file:
        try:
            return file.read(min(os.fstat(file.fileno()).st_size, most))
        except OSError as error:
            raise _unreadable(path, error, where, fix) from error


def open_zip(
    file: BufferedReader,
    *,
    methods: Collection[int] = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED),
) -> zipfile.ZipFile:
    """Reads the directory of an archive, and compares the methods by which members are compressed.

    `zipfile` unpacks bz2 and LZMA by the block, whatever is asked for: 50 bytes become a megabyte.

    Args:
        file: the archive, which this function takes over; it is closed when the result is dropped.
        methods: those that are allowed, none of which unpacks more than is asked for.

    Raises:
        ValueError: a member has another method.
        zipfile.BadZipFile: the file is no archive, or its directory is larger than 4 MiB.
    """
    pieces = _Pieces(file.detach())
    try:
        archive = zipfile.ZipFile(pieces)
        for member in archive.infolist():
            if member.compress_type not in methods:
                raise ValueError(
                    f"{member.filename} is compressed by method {member.compress_type}"
                )
    except BaseException:
        pieces.close()
        raise
    weakref.finalize(archive, pieces.close)
    return archive


class _Pieces(BufferedReader):
    """Reads at most 4 MiB at a time: `zipfile` asks for what an archive's directory claims."""

    def read(self, size: int | None = -1) -> bytes:
        """Returns the next bytes, which may be fewer than are left."""
        most = _MOST_DIRECTORY_BYTES
        return super().read(most if size is None or size < 0 else min(size, most))


def _refuse_kind(mode: int, path: str | Path, where: str | None, fix: str | None) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        problem = f"{_name(path, where)} is {kind}, not a regular file"
        raise UserError(problem, where=where, fix=fix)


def _real_inside(path: str | Path, inside: Path, where: str | None, fix: str | None) -> str:
    """Returns the path without symbolic links."""
    real, folder = os.path.realpath(path), os.path.realpath(inside)
    if os.path.commonpath([real, folder]) != folder:
        problem = f"{_name(path, where)} is a link that leads out of {inside}"
        raise UserError(problem, where=where, fix=fix)
    return real


def _unreadable(
    path: str | Path, error: OSError | ValueError, where: str | None, fix: str | None
) -> UserError:
    # A path with a NUL character is a ValueError.
    problem = getattr(error, "strerror", None) or str(error)
    return UserError(f"cannot read {_name(path, where)}: {problem}", where=where, fix=fix)


def _name(path: str | Path, where: str | None) -> str:
    return "it" if where == str(path) else printable_line(str(path))
