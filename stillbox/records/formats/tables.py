"""Tables: CSV with one box in a row, in pixels or Open Images', and Hugging Face `datasets`.

The first has the columns `filename,width,height,class,xmin,ymin,xmax,ymax`. Open Images has
fractions of the sides, and names of classes in `class-descriptions*.csv`; a box of a group counts
as a crowd.

`datasets` are an image folder with `metadata.jsonl`, or parquet files. `objects` has `bbox` as
[x, y, width, height] in pixels and `category` (or `categories`, `label`) as numbers or names. The
names of the classes are in the front matter of `README.md`, in `dataset_infos.json`, which older
sets have, and in the schema of parquet files.

Sources: storage.googleapis.com/openimages, "Data Formats"; huggingface.co/docs/datasets, "Object
detection" and "ClassLabel".
"""

import csv
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillbox.errors import UserError
from stillbox.extras import import_extra
from stillbox.printing import size_text
from stillbox.records.box_numbers import BoxNumbers
from stillbox.records.data_folder import DataFolder, folder_split, name_split
from stillbox.records.foreign_files import (
    Json,
    csv_header,
    json_list,
    json_object,
    name_text,
    number,
    numbered_lines,
    parse_int,
    parse_json,
    read_csv,
    read_head,
    read_json,
    read_lines,
    yaml_content,
)
from stillbox.records.formats.registry import FolderContents, Labelled, labelled, register
from stillbox.records.problems import ConversionLog
from stillbox.records.shapes import NO_BOX, Box
from stillbox.textformat.yaml_tree import read_text_file
from stillbox.untrusted import open_untrusted

if TYPE_CHECKING:
    from pyarrow import ChunkedArray
    from pyarrow.parquet import ParquetFile


_SIDES = ("ymin", "xmin", "ymax", "xmax")


def _row_box(row: Mapping[str, str], sides: Sequence[str]) -> Box:
    ymin, xmin, ymax, xmax = (number(row[side]) for side in sides)
    return ymin, xmin, ymax, xmax


# The column that this module reads, by names that other programs give it.
_SAME_COLUMN: dict[str, str] = {
    **dict.fromkeys(("image", "image_path", "image_name", "file_name", "file", "path"), "filename"),
    **dict.fromkeys(("label", "class_name", "category", "name", "label_name"), "class"),
    **dict.fromkeys(("x1", "x_min", "left"), "xmin"),
    **dict.fromkeys(("y1", "y_min", "top"), "ymin"),
    **dict.fromkeys(("x2", "x_max", "right"), "xmax"),
    **dict.fromkeys(("y2", "y_max", "bottom"), "ymax"),
    **dict.fromkeys(("image_width", "img_width"), "width"),
    **dict.fromkeys(("image_height", "img_height"), "height"),
}


def _columns(header: Sequence[str]) -> Mapping[str, str]:
    """Returns the column of a file by the name that this module has for it."""
    plain = {name.strip().lower(): name for name in header}
    same = {_SAME_COLUMN[name]: column for name, column in plain.items() if name in _SAME_COLUMN}
    return same | plain


def _is_voc_csv(file: Path) -> bool:
    return _columns(csv_header(file)[0]).keys() >= {"filename", "class", *_SIDES}


@register(
    "voc_csv",
    "CSV with the columns filename, class, xmin, ymin, xmax, ymax",
    lambda folder: folder.matching(_is_voc_csv, ".csv", ".tsv"),
)
def read_voc_csv(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads CSV files; passes over one of no split, as `labels.csv` beside `train_labels.csv`.

    Raises:
        UserError: a row is not like the header, or names a file outside the folder.
    """
    reading = FolderContents(numbers=BoxNumbers("pixels", "corners"))
    parts = [file for file in files if name_split(file.relative_to(folder.root))]
    for file in files:
        if parts and file not in parts:
            log.add("CSV file of no split", folder.relative(file), action="passed over")
            continue
        split = name_split(file.relative_to(folder.root))
        for name, rows in _rows_by_image(folder, file, log).items():
            path = folder.image(name, file, file.parent, log)
            if path is not None:
                where = f"{folder.relative(file)}: {name}"
                image_split = split or folder_split(path.relative_to(folder.root))
                names, sides, sizes = zip(*rows, strict=True)
                kept = [(n, s) for n, s in zip(names, sides, strict=True) if n or s != NO_BOX]
                names, sides = zip(*kept, strict=True) if kept else ((), ())
                image = labelled(path, where, names, sides, size=sizes[0], split=image_split)
                reading.images.append(image)
    if not reading.images:
        raise UserError("the CSV has no row", where=str(folder.shown / folder.relative(files[0])))
    return reading


_Row = tuple[str, Box, tuple[int, int]]
"""Class, sides, and height and width of the image. A row of an empty image has no class."""


def _rows_by_image(folder: DataFolder, file: Path, log: ConversionLog) -> dict[str, list[_Row]]:
    header, separator = csv_header(file)
    columns = _columns(header)
    if separator != ",":
        detail = f"columns are {', '.join(header)}"
        log.add(f"CSV with {separator!r} between its columns", folder.relative(file), detail)
    rows: dict[str, list[_Row]] = {}
    for _, row in read_csv(file):
        plain = {name: row[column].strip() for name, column in columns.items()}
        size = (parse_int(plain.get("height")), parse_int(plain.get("width")))
        labelled_box = (plain["class"], _row_box(plain, _SIDES), size)
        rows.setdefault(plain["filename"], []).append(labelled_box)
    return rows


_COLUMNS = ("YMin", "XMin", "YMax", "XMax")


def _is_boxes(file: Path) -> bool:
    return set(csv_header(file)[0]) >= {"ImageID", "LabelName", *_COLUMNS}


def _is_names(file: Path) -> bool:
    header, _ = csv_header(file)
    return len(header) == 2 and (header[0].startswith("/m/") or header[0] == "LabelName")


@register("open_images", "Open Images CSV", lambda folder: folder.matching(_is_boxes, ".csv"))
def read_open_images(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads CSV files; leaves out absent objects (Confidence 0) and rows of absent images."""
    names = _label_names(folder)
    reading = FolderContents(numbers=BoxNumbers("fractions", "corners"))
    for file in files:
        stated = name_split(file.relative_to(folder.root))
        for path, boxes in _boxes_of_images(folder, file, log).items():
            labels, sides, is_crowd, truncated = zip(*boxes, strict=True)
            reading.images.append(
                labelled(
                    path,
                    f"{folder.relative(file)}: {path.stem}",
                    [names.get(label, label) for label in labels],
                    sides,
                    split=stated or folder_split(path.relative_to(folder.root)),
                    relative=True,
                    is_crowd=is_crowd,
                    truncated=truncated,
                )
            )
    return reading


_LabelledBox = tuple[str, Box, bool, bool]
"""Label, sides, `IsGroupOf` and `IsTruncated`."""


def _boxes_of_images(
    folder: DataFolder, file: Path, log: ConversionLog
) -> dict[Path, list[_LabelledBox]]:
    """Returns the boxes of each image that is there: a folder may have few of millions."""
    paths: dict[str, Path | None] = {}
    boxes_of: dict[Path, list[_LabelledBox]] = {}
    for _, row in read_csv(file):
        if not number((row.get("Confidence") or "").strip() or "1") > 0:
            continue
        if (image_id := row["ImageID"]) not in paths:
            paths[image_id] = folder.image_of_stem(image_id, file)
            if paths[image_id] is None:
                log.bad_record("image file is missing", f"{folder.relative(file)}: {image_id}")
        if path := paths[image_id]:
            flags = row.get("IsGroupOf") == "1", row.get("IsTruncated") == "1"
            boxes_of.setdefault(path, []).append(
                (row["LabelName"], _row_box(row, _COLUMNS), *flags)
            )
    return boxes_of


def _label_names(folder: DataFolder) -> Mapping[str, str]:
    """Returns the readable name of each label, as `/m/0cmf2`."""
    names: dict[str, str] = {}
    for file in folder.matching(_is_names, ".csv"):
        folder.used.add(file)
        try:
            rows = [row for row in csv.reader(read_lines(file)) if len(row) == 2]
        except csv.Error as error:
            raise UserError(f"this is not CSV: {error}", where=str(file)) from error
        names |= {label: name.strip() for label, name in rows if label != "LabelName"}
    return names


_CARD, INFOS = "README.md", "dataset_infos.json"


def stated_names(folder: DataFolder, file: Path, log: ConversionLog) -> Sequence[str]:
    """Returns the names that the nearest `README.md` or `dataset_infos.json` gives the classes."""
    stating = [f for f in folder.files if f.name in (_CARD, INFOS) and f.parent in file.parents]
    for other in sorted(stating, key=lambda other: (-len(other.parts), other.name != _CARD)):
        folder.used.add(other)
        try:
            names = class_names(_front_matter(other) if other.name == _CARD else read_json(other))
        except UserError as error:
            where = folder.relative(other)
            log.add("no class names can be read", where, error.what, action="file passed over")
            continue
        if names:
            return names
    return ()


def class_names(content: Json) -> Sequence[str]:
    """Returns the names of the first class label below the column `objects`.

    It is `{_type: ClassLabel, names: [a, b]}`, or `class_label: {names: {'0': a, '1': b}}` in
    `README.md`.
    """
    columns: Iterator[Json] = (
        entry.get("objects", entry if entry.get("name") == "objects" else None)
        for entry in _mappings(content)
    )
    for entry in _mappings(next((column for column in columns if column), None)):
        label = entry if entry.get("_type") == "ClassLabel" else entry.get("class_label")
        names = json_object(label).get("names")
        if isinstance(names, dict):
            names = [names.get(str(number), "") for number in range(len(names))]
        if listed := json_list(names):
            return [name_text(name) for name in listed]
    return ()


def _mappings(content: Json) -> Iterator[dict[str, Json]]:
    """Yields all mappings, outer ones first; without recursion, since the depth has no bound."""
    left = [content]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            value = list(value.values())
        left.extend(reversed(json_list(value)))


def _front_matter(file: Path) -> Json:
    """Returns the YAML between the first two lines of `---`, None if there is none."""
    first, *lines = read_text_file(file, fix="save it as text").split("\n")
    rules = [place for place, line in enumerate(lines) if line.rstrip() == "---"]
    if first.rstrip() != "---" or not rules:
        return None
    # An empty first line keeps the line numbers of errors right.
    return yaml_content("\n".join(["", *lines[: rules[0]]]), str(file))


_BOX_KEYS = ("bbox", "bboxes")
_CLASS_KEYS = ("category", "categories", "label", "labels", "class", "category_id")
_OBJECT_KEYS = (*_BOX_KEYS, *_CLASS_KEYS)
# Files of the hub have half a gigabyte; their row groups are read one by one.
_MOST_PARQUET_BYTES = 2**34
# Images hardly shrink, and columns of boxes some ten times; small files may be of one color.
_MOST_GROWTH, _LEAST_GROUP = 100, 2**24
# Of the footer: bytes of a text, and of a list.
_PARQUET_LIMITS: dict[str, Any] = {
    "thrift_string_size_limit": 2**26,
    "thrift_container_size_limit": 2**20,
}
_LEAST_VALUES = 100_000
_LOCK = threading.Lock()


def _find(folder: DataFolder) -> list[Path]:
    metadata = [f for f in folder.with_suffix(".jsonl") if f.name == "metadata.jsonl"]
    return metadata + [f for f in folder.with_suffix(".parquet") if read_head(f)[:4] == b"PAR1"]


@register("hugging_face", "Hugging Face datasets", _find)
def read_hugging_face(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads metadata and parquet files."""
    reading = FolderContents(numbers=BoxNumbers("pixels", "corner_size"))
    for file in files:
        if file.suffix.lower() == ".jsonl":
            images, names = _from_lines(folder, file, log)
        else:
            with _opened(file) as table:
                images, names = _from_table(table, folder, file, log)
        reading.images += images
        reading.classes = reading.classes or names
    return reading


def _from_lines(
    folder: DataFolder, file: Path, log: ConversionLog
) -> tuple[list[Labelled], Sequence[str]]:
    classes = stated_names(folder, file, log)
    images = []
    for line, text in numbered_lines(file):
        row = json_object(parse_json(text, f"{file}:{line}"))
        name, where = row.get("file_name"), f"{folder.relative(file)}:{line}"
        if not isinstance(name, str):
            log.bad_record("row without a file_name", where)
            continue
        path = folder.image(name, file, file.parent, log)
        if path is not None:
            names, boxes = _objects(row.get("objects"), classes, where, log)
            split = folder_split(path.relative_to(folder.root))
            images.append(labelled(path, where, names, boxes, split=split))
    return images, classes


def _objects(
    objects: Json, classes: Sequence[str], where: str, log: ConversionLog
) -> tuple[list[str], list[Box]]:
    """Returns class names and boxes of a row: columns, or a list of objects."""
    columns = json_object(objects)
    if rows := [row for row in json_list(objects) if isinstance(row, dict)]:
        # Not every key: each row may have another one.
        used = [key for key in _OBJECT_KEYS if any(key in row for row in rows)]
        columns = {key: [row.get(key) for row in rows] for key in used}
    boxes = columns.get("bbox", columns.get("bboxes")) or []
    stated = (columns[key] for key in _CLASS_KEYS if columns.get(key) is not None)
    labels: Json = next(stated, [])
    if not isinstance(boxes, list) or not isinstance(labels, list) or len(boxes) != len(labels):
        log.bad_box("boxes and categories differ in number", where, action="boxes dropped")
        return [], []
    return [_name(label, classes) for label in labels], [_box(box) for box in boxes]


def _name(label: object, classes: Sequence[str]) -> str:
    if isinstance(label, bool) or not isinstance(label, int):
        return label if isinstance(label, str) else json.dumps(label, default=str)
    return classes[label] if 0 <= label < len(classes) else f"class_{label}"


def _box(values: object) -> Box:
    if not isinstance(values, list) or len(values) != 4:
        return NO_BOX
    x, y, width, height = map(number, values)
    return y, x, y + height, x + width


@contextmanager
def _opened(file: Path) -> "Iterator[ParquetFile]":
    """Opens a parquet file; damage and values that unpack to too much are refused."""
    parquet = import_extra("pyarrow.parquet", "parquet")
    import pyarrow as pa

    with open_untrusted(file, most=_MOST_PARQUET_BYTES) as content:
        size = os.fstat(content.fileno()).st_size
        try:
            table = parquet.ParquetFile(content, **_PARQUET_LIMITS)
            paths = {table.metadata.schema.column(n).path for n in range(len(table.schema))}
            # An image that many rows have is held once.
            shared = sorted({"image", "image.bytes"} & paths)
            table = parquet.ParquetFile(content, read_dictionary=shared, **_PARQUET_LIMITS)
            _refuse_growth(table, size)
            yield table
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            if isinstance(error, UserError):
                raise
            reason = str(error).partition("\n")[0] or "its content has another form"
            problem = f"the parquet file is damaged or too large: {reason}"
            raise UserError(problem, where=str(file), fix="copy the file again") from error


def _refuse_growth(table: "ParquetFile", size: int) -> None:
    """Refuses row groups that unpack to many times the bytes of the file."""
    groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    # A run of equal values takes a few bytes, whatever its length.
    values = sum(column.num_values for column in columns)
    if values > max(size, _LEAST_VALUES):
        raise ValueError(f"it claims {values:,} values, and has {size_text(size)}")
    stated = max((group.total_byte_size for group in groups), default=0)
    if stated > max(_MOST_GROWTH * size, _LEAST_GROUP):
        raise ValueError(f"it unpacks to {size_text(stated)}, and has {size_text(size)}")


def _from_table(
    table: "ParquetFile", folder: DataFolder, file: Path, log: ConversionLog
) -> tuple[list[Labelled], Sequence[str]]:
    schema = table.schema_arrow
    if not {"image", "objects"} <= set(schema.names):
        where = folder.relative(file)
        log.bad_record("parquet file without image and objects", where, ", ".join(schema.names))
        return [], ()
    classes = class_names(parse_json((schema.metadata or {}).get(b"huggingface", b"{}"), str(file)))
    images = []
    split = name_split(file.relative_to(folder.root))
    for group in range(table.num_row_groups):
        rows = table.read_row_group(group, columns=["objects"]).column("objects").to_pylist()
        for row, content in enumerate(rows):
            where = f"{folder.relative(file)}: row {group}.{row}"
            names, boxes = _objects(content, classes, where, log)
            path, stored = Path(f"{file}#{group}.{row}.img"), partial(_stored, file, group, row)
            images.append(labelled(path, where, names, boxes, split=split, stored=stored))
    return images, classes


def _stored(file: Path, group: int, row: int) -> bytes:
    with _LOCK:  # threads that need the same group read it once
        images = _group_images(file, group)
    content = images[row].as_py()
    data = content.get("bytes") if isinstance(content, dict) else content
    if not isinstance(data, bytes):
        raise FileNotFoundError(f"the row holds no bytes of an image: {file}")
    return data


@lru_cache(maxsize=2)
def _group_images(file: Path, group: int) -> "ChunkedArray":
    with _opened(file) as table:
        return table.read_row_group(group, columns=["image"]).column("image")
