"""Files that are whole or absent, whatever kills process or machine while they are written."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DYING = ".deleted-"
"""How the name of a folder begins while it is being removed."""


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Lets errors of a file that is open say which file: a full disk alone does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file and waits until the disk has it. Its name appears before it is whole."""
    with blamed(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, text: str) -> None:
    """Replaces a text file: a reader finds the old content or the new, never half of one."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    write_durably(unfinished, text.encode())
    unfinished.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Waits until the disk has the names that a folder holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Removes a folder; its name is gone before the first of its files is."""
    dying = path.with_name(f"{DYING}{path.name}")
    path.rename(dying)
    shutil.rmtree(dying)


def list_folder(path: Path, limit: int = 12) -> str:
    """Returns what lies in a folder, for a message."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "") or "nothing"
