"""Writing a file whole or not at all."""

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
        raise UserError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            fix="choose another folder, or make room on its disk",
        ) from error
