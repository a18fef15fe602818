"""Files of predictions that grow line by line."""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.records.files import create_file
from stillbox.untrusted import open_untrusted

Write = Callable[[Mapping[str, Any]], None]


@contextmanager
def json_lines(path: Path) -> Iterator[Write]:
    """Yields a function that appends an object to a file as a line of JSON.

    Lines are in the file at once: after a crash, it holds everything up to that.

    Raises:
        UserError: it cannot be written.
    """
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.TextIOWrapper(create_file(path), encoding="utf-8", line_buffering=True)

    def append(entry: Mapping[str, Any]) -> None:
        with _naming(path):
            print(json.dumps(entry), file=file)

    try:
        yield append
    finally:
        with _naming(path):
            file.close()


def write_list(lines: Path, path: Path) -> Path:
    """Writes the objects of a file of JSON lines as one JSON list, whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with (
            _naming(path),
            open_untrusted(lines, most=None) as source,
            create_file(partial) as target,
        ):
            target.write(b"[")
            for number, line in enumerate(source):
                target.write((b",\n" if number else b"\n") + line.rstrip(b"\n"))
            target.write(b"\n]\n")
        return partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raises errors of the system with the file's name."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            fix="choose another --output folder, or make room on its disk",
        ) from error
