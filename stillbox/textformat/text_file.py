"""Reads text files that people name: regular files of a bounded size, as UTF-8."""

import codecs
import stat
from pathlib import Path

from stillbox.errors import UserError

MAX_BYTES = 2**19
"""Greatest size of a config: a thousand names of shards take a fifth of it."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def read_text_file(
    path: str | Path, *, where: str | None = None, fix: str, most: int = MAX_BYTES
) -> str:
    """Returns the text of a file, without its byte order mark.

    Nothing is read of what is no regular file: a pipe or a device may have no end, and opening it
    can block.

    Args:
        path: the file.
        where: the option or place that names it.
        fix: what to give instead.
        most: greatest size in bytes.

    Raises:
        UserError: there is no such file, it is no regular file, it is too large, it cannot be read,
            or it is not UTF-8.
    """
    path = Path(path)
    try:
        status = path.stat()
        kind = stat.S_IFMT(status.st_mode)
        if kind != stat.S_IFREG:
            found = _KINDS.get(kind, "no file")
            raise UserError(f"{path} is {found}, not a text file", where=where, fix=fix)
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        # A path with a NUL character is a ValueError.
        problem = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read {path}: {problem}", where=where, fix=fix) from error
    if len(data) > most:
        size = max(status.st_size, len(data))
        what = f"{path} has {size:,} bytes; such a text has {most:,} at most"
        raise UserError(what, where=where, fix=fix)
    try:
        # utf-8-sig: editors on Windows put a byte order mark in front.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> UserError:
    # The decoder has the file without its byte order mark.
    before = bytes(error.object[: error.start]).decode()
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    what = f"byte {error.object[error.start]:#04x} is not UTF-8"
    if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        what = "the file is UTF-16, as its first two bytes say"
    # Nothing of the file is quoted: it may be one that should not have been opened.
    return UserError(
        what,
        where=f"{path}:{line}:{column}",
        fix="save it as UTF-8, if it is a text at all",
    )
