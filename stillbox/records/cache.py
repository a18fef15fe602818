"""The cache folder: `$XDG_CACHE_HOME/stillbox`, by default `~/.cache/stillbox`.

Gzip has no random access. Such a TFRecord file is decompressed once into this folder and read from
there: memory stays flat, and the second start costs nothing.
"""

import gzip
import hashlib
import os
import tempfile
from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.tfrecord import BROKEN_GZIP

BROKEN = ".broken"
_COPY_BYTES = 1 << 20


def cache_folder() -> Path:
    """Returns the folder for what can be made again: indexes and decompressed files."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "stillbox"


def path_key(path: Path) -> str:
    """Returns a short name for a path that no other path has."""
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]


def decompressed(path: Path) -> Path:
    """Returns the plain copy of a gzip file, made on the first call.

    A gzip stream that breaks off gives the bytes before the break, under a name that says so.
    """
    state = path.stat()
    folder = cache_folder() / "decompressed"
    key = path_key(path)
    whole = folder / f"{key}-{state.st_size}-{state.st_mtime_ns}.record"
    broken = whole.with_name(whole.stem + BROKEN)
    for copy in (whole, broken):
        if copy.exists():
            return copy
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".new-", delete=False) as file:
            sound = _inflate(path, file)
    except OSError as error:
        raise UserError(
            f"there is no room for the decompressed copy of a gzip file: {error}",
            where=str(path),
            fix="let XDG_CACHE_HOME name a folder with room, or decompress the file with gunzip",
        ) from error
    for outdated in folder.glob(f"{key}-*"):
        outdated.unlink(missing_ok=True)
    copy = whole if sound else broken
    Path(file.name).replace(copy)
    return copy


def _inflate(path: Path, target: "tempfile._TemporaryFileWrapper[bytes]") -> bool:
    """Decompresses as far as it goes; tells whether that was to the end."""
    with gzip.open(path, "rb") as stream:
        while True:
            try:
                # read1: what was decompressed before the break is not lost with the rest.
                block = stream.read1(_COPY_BYTES)
            except BROKEN_GZIP:
                return False
            if not block:
                return True
            target.write(block)
