"""Files of a data folder that look like annotations and that nothing has read, with the reason.

Recognition looks at the content of files, so a damaged file is of no format. Passed over in
silence, it takes its labels with it, or a whole split.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stillbox.errors import UserError
from stillbox.printing import printable_line
from stillbox.records.data_folder import DataFolder, Split, name_split
from stillbox.records.file_kinds import ARCHIVES, OTHER_IMAGES, other_content
from stillbox.records.foreign_files import (
    csv_header,
    decode_text,
    read_head,
    read_json,
    read_xml,
    read_yaml,
)
from stillbox.records.problems import ConversionLog

if TYPE_CHECKING:
    from stillbox.records.formats.registry import Recognised

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


_NO_FORMAT = "it has no format that is read"
_OTHER_IMAGE = f"{_NO_FORMAT}: save images as JPEG or PNG, and frames of videos too"


def _as_json(file: Path) -> str:
    read_json(file)
    return _NO_FORMAT


def _as_xml(file: Path) -> str:
    return f"{_NO_FORMAT}: its root is <{read_xml(file).tag}>"


def _as_yaml(file: Path) -> str:
    read_yaml(file)
    return _NO_FORMAT


def _as_csv(file: Path) -> str:
    columns, _ = csv_header(file)
    shown = printable_line(", ".join(columns[:12]))
    return f"{_NO_FORMAT}: its columns are {shown}" if columns else "it is no text"


def _as_text(file: Path) -> str:
    try:
        lines = decode_text(read_head(file)[:4096].rpartition(b"\n")[0]).split("\n")
    except UnicodeDecodeError:
        return "it is no UTF-8 text"
    return f"{_NO_FORMAT}; it begins with {printable_line(lines[0][:60])!r}"


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


def report_unread(
    data: DataFolder, recognised: "Recognised", splits: Collection[Split | None], log: ConversionLog
) -> None:
    """Reports the files that could be annotations and that no format has read.

    A file that states a split or the classes stops the conversion: the images of a lost split
    would be divided at random, and a model would be scored on what it was trained on.

    Args:
        recognised: the format that was read, and the files of all formats.
        splits: the splits of the images that were read.

    Raises:
        UserError: such a file cannot be read, or the policy of records is `fail`.
    """
    yamls = {file for file in recognised.files if file.suffix.lower() in _YAML}
    needs_yaml = recognised.format.name == "yolo" and not yamls
    for file, line, reason in unread_files(data, {*recognised.all_files, *data.used}):
        where = data.relative(file) + line
        lost = ""
        if file.suffix.lower() in _YAML and needs_yaml:
            lost = "classes and splits may be"
        elif not data.images_of_stem(file.stem) and _is_lost(file, data, splits):
            lost = "a split is"
        if reason.startswith(_NO_FORMAT):
            log.add("file of no format that is read", where, reason, action="not read")
        elif lost:
            problem = f"the file cannot be read, and {lost} lost with it: {reason}"
            fix = "mend the file, or take it out of the folder"
            raise UserError(problem, where=str(data.shown / where), fix=fix)
        elif file.suffix.lower() in ARCHIVES:
            log.add("archive", where, reason, action="not read")
        else:
            log.bad_record("annotation file cannot be read", where, reason)
            data.used.update(data.images_of_stem(file.stem))


_YAML = (".yaml", ".yml")


def _is_lost(file: Path, data: DataFolder, splits: Collection[Split | None]) -> bool:
    """Tells whether the split that the name of a file states is not among those that were read."""
    split = name_split(file.relative_to(data.root))
    return split is not None and not {split, "val" if split == "test" else split} & {*splits}


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
