"""CSV with one box in a row: in pixels, or Open Images'.

The first has the columns `filename,width,height,class,xmin,ymin,xmax,ymax`. Open Images has
fractions of the sides, and names of classes in `class-descriptions*.csv`; a box of a group counts
as a crowd. Source: storage.googleapis.com/openimages, "Data Formats".
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.annotations import number, parse_int, read_csv, read_lines
from stillbox.records.data_folder import DataFolder, folder_split, name_split
from stillbox.records.formats.common import Box, csv_header, labelled
from stillbox.records.formats.registry import FolderContents, register
from stillbox.records.problems import ConversionLog

_SIDES = ("ymin", "xmin", "ymax", "xmax")


def _box(row: Mapping[str, str], sides: Sequence[str]) -> Box:
    ymin, xmin, ymax, xmax = (number(row[side]) for side in sides)
    return ymin, xmin, ymax, xmax


def _is_voc_csv(file: Path) -> bool:
    header = {name.strip().lower() for name in csv_header(file)}
    return header >= {"filename", "class", *_SIDES}


@register(
    "voc_csv",
    "CSV with the columns filename, class, xmin, ymin, xmax, ymax",
    lambda folder: folder.matching(_is_voc_csv, ".csv"),
)
def read_voc_csv(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads CSV files; passes over one of no split, as `labels.csv` beside `train_labels.csv`.

    Raises:
        UserError: a row is not like the header, or names a file outside the folder.
    """
    reading = FolderContents()
    parts = [file for file in files if name_split(file.relative_to(folder.root))]
    for file in files:
        if parts and file not in parts:
            log.add("CSV file of no split", folder.relative(file), action="passed over")
            continue
        split = name_split(file.relative_to(folder.root))
        rows: dict[str, list[tuple[str, Box, tuple[int, int]]]] = {}
        for _, row in read_csv(file):
            plain = {key.strip().lower(): value.strip() for key, value in row.items()}
            size = (parse_int(plain.get("height")), parse_int(plain.get("width")))
            one = (plain["class"], _box(plain, _SIDES), size)
            rows.setdefault(plain["filename"], []).append(one)
        for name, boxes in rows.items():
            path = folder.image(name, file, file.parent, log)
            if path is not None:
                where = f"{folder.relative(file)}: {name}"
                own = split or folder_split(path.relative_to(folder.root))
                names, sides, sizes = zip(*boxes, strict=True)
                image = labelled(path, where, names, sides, size=sizes[0], split=own)
                reading.images.append(image)
    if not reading.images:
        raise UserError("the CSV has no row", where=str(folder.shown / folder.relative(files[0])))
    return reading


_COLUMNS = ("YMin", "XMin", "YMax", "XMax")


def _is_boxes(file: Path) -> bool:
    return set(csv_header(file)) >= {"ImageID", "LabelName", *_COLUMNS}


def _is_names(file: Path) -> bool:
    header = csv_header(file)
    return len(header) == 2 and (header[0].startswith("/m/") or header[0] == "LabelName")


@register("open_images", "Open Images CSV", lambda folder: folder.matching(_is_boxes, ".csv"))
def read_open_images(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads CSV files; rows of images that are not in the folder are counted and left out.

    A Confidence of 0 marks an object that is absent; an empty one has no meaning.
    """
    names = _names(folder)
    reading = FolderContents()
    for file in files:
        rows: dict[str, list[dict[str, str]]] = {}
        for _, row in read_csv(file):
            if number((row.get("Confidence") or "").strip() or "1") > 0:
                rows.setdefault(row["ImageID"], []).append(row)
        stated = name_split(file.relative_to(folder.root))
        for image_id, boxes in rows.items():
            path = folder.image_of_stem(image_id, file)
            where = f"{folder.relative(file)}: {image_id}"
            if path is None:
                log.bad_record("image file is missing", where)
                continue
            reading.images.append(
                labelled(
                    path,
                    where,
                    [names.get(row["LabelName"], row["LabelName"]) for row in boxes],
                    [_box(row, _COLUMNS) for row in boxes],
                    split=stated or folder_split(path.relative_to(folder.root)),
                    relative=True,
                    is_crowd=[row.get("IsGroupOf") == "1" for row in boxes],
                    truncated=[row.get("IsTruncated") == "1" for row in boxes],
                )
            )
    return reading


def _names(folder: DataFolder) -> Mapping[str, str]:
    """Returns the readable name of each label, as `/m/0cmf2`."""
    files = folder.matching(_is_names, ".csv")
    rows = (row for file in files for row in csv.reader(read_lines(file)))
    return {row[0]: row[1].strip() for row in rows if len(row) == 2 and row[0] != "LabelName"}
