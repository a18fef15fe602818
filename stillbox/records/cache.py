"""The cache folder: `$XDG_CACHE_HOME/stillbox`, by default `~/.cache/stillbox`.

Gzip has no random access. A compressed TFRecord file is decompressed once into this folder and read
from there: memory stays flat, and the second start costs nothing.
"""

import gzip
import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from stillbox.errors import UserError
from stillbox.records.framing import is_header
from stillbox.records.new_folder import try_lock
from stillbox.untrusted import open_untrusted

BROKEN = ".broken"
"""Suffix of the copy of a gzip file that breaks off."""
_COPY_BYTES = 1 << 20
_NEW, _LEFTOVER_SECONDS = ".new-", 60
# Images hardly shrink; a thousand is what gzip makes of zeros. A small file has a block anyway.
_MOST_COMPRESSION = 200


def is_gzip(first_bytes: bytes) -> bool:
    """Distinguishes a gzip file from a plain TFRecord file by its first 12 bytes.

    A record of 559,903 bytes starts like gzip too, but then the checksum of the length is right.
    """
    return first_bytes.startswith(b"\x1f\x8b\x08") and not is_header(first_bytes)


def cache_folder() -> Path:
    """Returns the folder for files that can be made again: indexes and decompressed files."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "stillbox"


def path_key(path: Path) -> str:
    """Returns a short name that is unique to a path."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]


def decompressed(path: Path) -> Path:
    """Returns the plain copy of a gzip file, made on the first call.

    A gzip stream that breaks off gives the bytes before the break in a file with suffix `BROKEN`.
    """
    state = path.stat()
    folder = cache_folder() / "decompressed"
    key = path_key(path)
    whole = folder / f"{key}-{state.st_size}-{state.st_mtime_ns}.record"
    broken = whole.with_suffix(BROKEN)
    for copy in (whole, broken):
        if copy.exists():
            return copy
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        with (
            tempfile.NamedTemporaryFile(dir=folder, prefix=_NEW, delete=False) as file,
            _removed_on_error(Path(file.name)),
        ):
            try_lock(file.fileno())
            complete = _decompress(path, file.file)
    except OSError as error:
        raise UserError(
            f"there is no room for the decompressed copy of a gzip file: {error}",
            where=str(path),
            fix="let XDG_CACHE_HOME name a folder with room, or decompress the file with gunzip",
        ) from error
    for outdated in folder.glob(f"{key}-*"):
        outdated.unlink(missing_ok=True)
    return Path(file.name).replace(whole if complete else broken)


def _remove_leftovers(folder: Path) -> None:
    """Removes copies whose process was killed: they are old, and nobody holds their lock."""
    for leftover in folder.glob(f"{_NEW}*"):
        with suppress(OSError, UserError), open_untrusted(leftover, most=None) as file:
            old = time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS
            if old and try_lock(file.fileno()):
                leftover.unlink()


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink()
        raise


def _decompress(path: Path, target: IO[bytes]) -> bool:
    """Decompresses up to the first fault; returns whether there was none."""
    with open_untrusted(path, most=None) as file, gzip.GzipFile(fileobj=file) as stream:
        left = _MOST_COMPRESSION * os.fstat(file.fileno()).st_size
        try:
            # read1 returns what was decompressed before a fault.
            while block := stream.read1(_COPY_BYTES):
                left -= len(block)
                if left < 0:
                    raise UserError(
                        f"the gzip file unpacks to more than {_MOST_COMPRESSION} times of its size",
                        where=str(path),
                        fix="see what it is; if it is right, decompress it with gunzip",
                    )
                target.write(block)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return False
    return True
