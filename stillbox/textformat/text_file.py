"""Reads text files that people name: regular files of a bounded size, as UTF-8."""

import codecs
from pathlib import Path

from stillbox.errors import UserError
from stillbox.untrusted import read_untrusted

MAX_BYTES = 2**19
"""Greatest size of a config: a thousand names of shards take a fifth of it."""


def read_text_file(
    path: str | Path,
    *,
    where: str | None = None,
    fix: str,
    most: int = MAX_BYTES,
    inside: Path | None = None,
) -> str:
    """Returns the text of a file, without its byte order mark.

    Args:
        path: the file.
        where: the option or place that names it.
        fix: what to give instead.
        most: greatest size in bytes.
        inside: see `read_untrusted`.

    Raises:
        UserError: `read_untrusted` refuses it, or it is not UTF-8.
    """
    path = Path(path)
    data = read_untrusted(path, most=most, where=where, fix=fix, inside=inside)
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
