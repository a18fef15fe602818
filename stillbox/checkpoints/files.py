"""Durable and atomic writing of files: after a crash a file is complete or absent."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stillbox.printing import printable_line
from stillbox.records.files import create_file, remove_tree

DELETED = ".deleted-"
"""Prefix of the name of a folder that is being removed."""
MAX_WEIGHTS_BYTES = 2**33
"""Greatest size of a file of weights, and of its arrays: a billion parameters take half of it."""
MAX_JSON_BYTES = 2**22
"""Greatest size of a JSON file of a model directory; real ones have some kilobytes."""


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Adds the file's name to an `OSError` that has none, as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file and waits until the disk has it. Its name appears before its content."""
    with blamed(path), create_file(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def unfinished_files(*targets: Path) -> Iterator[list[Path]]:
    """Yields the paths of temporary files beside others; after an error none of them is left."""
    unfinished = [path.with_name(f".{path.name}.unfinished") for path in targets]
    try:
        with blamed(targets[0]):
            yield unfinished
    except BaseException:
        for path in unfinished:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a temporary file, which then replaces `path` in one step."""
    with unfinished_files(path) as (unfinished,):
        yield unfinished
        unfinished.replace(path)
    sync_folder(path.parent)


def replace_durably(path: Path, text: str) -> None:
    """Replaces a text file. Readers find the old content or the new one, never a part."""
    with replacing(path) as unfinished:
        write_durably(unfinished, text.encode())


def sync_folder(path: Path) -> None:
    """Waits until the disk has the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Removes a folder; its name disappears before the first of its files."""
    deleted = path.with_name(f"{DELETED}{path.name}")
    path.rename(deleted)
    remove_tree(deleted)


def list_folder(path: Path, limit: int = 12) -> str:
    """Returns the names in a folder, for a message."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    rest = len(names) - limit
    shown = printable_line(", ".join(names[:limit])) or "nothing"
    return shown + (f" and {rest} more" if rest > 0 else "")
