"""The outlines of annotation files, by which formats recognise them."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.records.data_folder import DataFolder
from stillbox.records.guarded import MAX_ANNOTATION_BYTES, read_head, xml_root
from stillbox.untrusted import read_untrusted

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JsonOutline:
    """The keys of a JSON file."""

    keys: frozenset[str] = NOTHING
    """Of the object; or, if `is_list`, of the first object of the list."""
    is_list: bool = False
    inner: dict[str, frozenset[str]] = field(default_factory=dict)
    """Keys of the first object in each list of the object."""


def json_outline(folder: DataFolder, file: Path) -> JsonOutline:
    """Returns the keys of a JSON file, none if it is not JSON."""
    return folder.memoized(_outline, file, folder.json)


def _outline(file: Path, read: Callable[[Path], Any]) -> JsonOutline:
    try:
        content = read(file)
    except UserError:
        return JsonOutline()
    if isinstance(content, list):
        return JsonOutline(_keys(content), is_list=True)
    if not isinstance(content, dict):
        return JsonOutline()
    lists = {key: _keys(value) for key, value in content.items() if isinstance(value, list)}
    return JsonOutline(frozenset(content), inner=lists)


def _keys(values: list[object]) -> frozenset[str]:
    first = values[0] if values else None
    return frozenset(first) if isinstance(first, dict) else NOTHING


def xml_outline(path: Path) -> tuple[str, frozenset[str]]:
    """Returns the root element of an XML file, and which telling elements occur in it."""
    root = xml_root(read_head(path))
    content = (
        read_untrusted(path, most=MAX_ANNOTATION_BYTES)
        if root in ("annotation", "annotations")
        else b""
    )
    marks = ("bndbox", "polygon", "object", "image", "track")
    return root, frozenset(
        m for m in marks if any(b"<" + m.encode() + end in content for end in (b">", b" "))
    )


def csv_header(path: Path) -> tuple[str, ...]:
    """Returns the first row of a CSV file, empty if it is not text."""
    try:
        text = read_head(path).decode(
            "utf-8-sig", errors="strict" if path.stat().st_size < 65536 else "ignore"
        )
    except (ValueError, OSError):
        return ()
    try:
        # As `read_csv` reads it: other characters end a line elsewhere.
        return tuple(next(csv.reader(io.StringIO(text, newline=""), strict=True), ()))
    except csv.Error:
        return ()
