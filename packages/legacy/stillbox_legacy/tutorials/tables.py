"""The tables of tutorials: one box in a row, from Pascal VOC XML and to records.

Source: `xml_to_csv.py` and `generate_tfrecord.py` of github.com/datitran/raccoon_dataset (MIT),
from which the tutorials have theirs.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stillbox.errors import UserError
from stillbox.records.annotations import AnnotatedImage, ImageRoot
from stillbox.records.files import write_whole
from stillbox.records.foreign_files import number, parse_int, read_csv, read_lines
from stillbox.records.formats.voc import read_voc_file
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError, ConversionLog

COLUMNS = ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_LABELS = "give a label map (.pbtxt), or a file with the name of a class in each line"


class Table(NamedTuple):
    """The boxes of a folder of XML files."""

    rows: Sequence[tuple[str, ...]]
    """Values of `COLUMNS` for each box, as they are written in the files."""
    files: int
    """Number of XML files."""


def read_table(folder: Path, log: ConversionLog) -> Table:
    """Reads the boxes of all XML files of a folder, in the order of the files.

    Raises:
        UserError: the folder is absent or has no XML file, or one has another format.
    """
    files = sorted(folder.glob("*.xml")) if folder.is_dir() else []
    if not files:
        sentence = "the folder has no XML file" if folder.is_dir() else "there is no such folder"
        raise UserError(
            sentence, where=str(folder), fix="give the folder that labelImg has written"
        )
    rows = []
    for file in files:
        try:
            tree = read_voc_file(file)
        except BadRecordError as error:
            log.bad_record(error.reason, str(file), error.detail)
            continue
        head = [tree.findtext(path) or "" for path in ("filename", "size/width", "size/height")]
        for item in tree.findall("object"):
            sides = [item.findtext(f"bndbox/{side}") or "" for side in COLUMNS[4:]]
            row = (*head, item.findtext("name") or "", *sides)
            rows.append(tuple(value.strip() for value in row))
    return Table(rows, len(files))


def write_table(rows: Iterable[Sequence[str]], path: Path) -> None:
    """Writes rows under the names of `COLUMNS` as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    write_whole(path, text.getvalue().encode())


class Labels(NamedTuple):
    """Names of classes in the boxes of a table."""

    images: Sequence[AnnotatedImage]
    label_map: LabelMap


def read_boxes(table: Path, images: Path, label_map: LabelMap | None) -> Labels:
    """Reads a table as the annotations of its images, in the order of their names.

    Args:
        table: a CSV file with `COLUMNS`, of which width and height may be left out.
        images: the folder of the images, which no name may leave.
        label_map: the classes; None: the classes of the table, by name.

    Raises:
        UserError: a file is absent, a column is missing, or an image's name leads out.
    """
    if not images.is_dir():
        raise UserError("there is no such folder of images", where=str(images), fix="--image_dir")
    groups: dict[str, list[dict[str, str]]] = {}
    for line, row in read_csv(table):
        plain = {key.strip().lower(): (value or "").strip() for key, value in row.items()}
        missing = [name for name in ("filename", "class", *_SIDES) if name not in plain]
        if missing:
            raise UserError(
                f"the table has no column {missing[0]}",
                where=f"{table}:{line}",
                fix=f"its first line is {','.join(COLUMNS)}",
            )
        groups.setdefault(plain["filename"], []).append(plain)
    if not groups:
        raise UserError("the table has no row", where=str(table), fix="write it with xml_to_csv.py")
    if label_map is None:
        names = sorted({row["class"] for rows in groups.values() for row in rows} - {""})
        label_map = LabelMap.from_names(names)
    root = ImageRoot(images)
    annotated = [
        _annotated(root.path(name, table), f"{table}: {name}", groups[name], label_map)
        for name in sorted(groups)
    ]
    return Labels(annotated, label_map)


def _annotated(
    path: Path, where: str, rows: Sequence[dict[str, str]], label_map: LabelMap
) -> AnnotatedImage:
    ids = [label_map.find(row["class"]) for row in rows]
    return AnnotatedImage(
        path=path,
        where=where,
        image_id=path.name,
        filename=path.name,
        height=parse_int(rows[0].get("height")),
        width=parse_int(rows[0].get("width")),
        pixel_boxes=np.array([[number(row[side]) for side in _SIDES] for row in rows]),
        class_ids=np.array(ids, np.int32),
        unknown={index: repr(rows[index]["class"]) for index, i in enumerate(ids) if not i},
    )


def read_labels(path: Path) -> LabelMap:
    """Reads a label map, or a text with the name of a class in each line.

    Raises:
        UserError: it is neither.
    """
    if not path.is_file():
        raise UserError("there is no such file", where=str(path), fix=_LABELS)
    lines = read_lines(path)
    if path.suffix == ".pbtxt" or any(line.startswith("item") and "{" in line for line in lines):
        return LabelMap.from_file(path)
    if not lines:
        raise UserError("the file names no class", where=str(path), fix=_LABELS)
    return LabelMap.from_names(lines)
