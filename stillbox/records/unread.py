"""Files of a data folder that look like annotations and that nothing has read, with the reason.

Recognition looks at the content of files, so a damaged file is of no format. Passed over in
silence, it takes its labels with it, or a whole split.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from stillbox.errors import UserError
from stillbox.printing import printable_line
from stillbox.records.data_folder import DataFolder
from stillbox.records.file_kinds import ARCHIVES, OTHER_IMAGES, other_content
from stillbox.records.foreign_files import (
    csv_header,
    decode_text,
    read_head,
    read_json,
    read_xml,
    read_yaml,
)

_READ = (".json", ".xml", ".yaml", ".yml", ".csv", ".tsv", ".jsonl", ".ndjson", ".txt", ".parquet")
_NUMBERS = re.compile(r"[-+.\d]+([\s,;]+[-+.\d]+){3,}")
_NOT_DATA = re.compile(r"(readme|license|licence|notice|requirements|changelog)", re.I)


class Unread(NamedTuple):
    """A file that could be annotations and is of no format that is read."""

    file: Path
    line: str
    """`:5:1`, or nothing."""
    reason: str


def _why_unread(file: Path) -> Unread:
    try:
        reason = other_content(read_head(file))
        if file.suffix.lower() in OTHER_IMAGES:
            return Unread(file, "", reason or _OTHER_IMAGE)
        return Unread(file, "", reason or _READERS.get(file.suffix.lower(), _as_text)(file))
    except UserError as error:
        place = (error.where or "").removeprefix(f"{file}")
        return Unread(file, place if place.startswith(":") else "", error.what)


NO_FORMAT = "it has no format that is read"
_OTHER_IMAGE = f"{NO_FORMAT}: save images as JPEG or PNG, and frames of videos too"


def _as_json(file: Path) -> str:
    read_json(file)
    return NO_FORMAT


def _as_xml(file: Path) -> str:
    return f"{NO_FORMAT}: its root is <{read_xml(file).tag}>"


def _as_yaml(file: Path) -> str:
    read_yaml(file)
    return NO_FORMAT


def _as_csv(file: Path) -> str:
    columns, _ = csv_header(file)
    shown = printable_line(", ".join(columns[:12]))
    return f"{NO_FORMAT}: its columns are {shown}" if columns else "it is no text"


def _as_text(file: Path) -> str:
    try:
        lines = decode_text(read_head(file)[:4096].rpartition(b"\n")[0]).split("\n")
    except UnicodeDecodeError:
        return "it is no UTF-8 text"
    return f"{NO_FORMAT}; it begins with {printable_line(lines[0][:60])!r}"


_READERS = {
    ".json": _as_json,
    ".xml": _as_xml,
    ".yaml": _as_yaml,
    ".yml": _as_yaml,
    ".csv": _as_csv,
    ".tsv": _as_csv,
}


def unread_files(data: DataFolder, read: Collection[Path]) -> list[Unread]:
    """Returns the files that could be annotations and are not among `read`, with the reason."""
    return [
        _why_unread(file)
        for file in data.files
        if file not in read and _could_be_annotations(file, data)
    ]


def _could_be_annotations(file: Path, data: DataFolder) -> bool:
    suffix = file.suffix.lower()
    if suffix in (*ARCHIVES, *OTHER_IMAGES):
        return True
    if suffix not in _READ or _NOT_DATA.match(file.name):
        return False
    return suffix != ".txt" or bool(data.images_of_stem(file.stem)) or _has_numbers(file)


def _has_numbers(file: Path) -> bool:
    head = read_head(file)
    if other_content(head):
        return len(head) > 0
    first = head.lstrip(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return bool(_NUMBERS.search(first.decode(errors="replace")[:4096]))
