"""Open Images CSV: one box in a row, in fractions of the sides, with `class-descriptions*.csv`.

Source: storage.googleapis.com/openimages, "Data Formats". A box of a group counts as a crowd.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from stillbox.records.data_folder import DataFolder, folder_split, name_split
from stillbox.records.formats.build import labelled
from stillbox.records.formats.registry import FolderContents, register
from stillbox.records.formats.sniff import csv_header
from stillbox.records.guarded import number, read_csv, read_lines
from stillbox.records.problems import ConversionLog

_COLUMNS = ("YMin", "XMin", "YMax", "XMax")


def _is_boxes(file: Path) -> bool:
    return set(csv_header(file)) >= {"ImageID", "LabelName", *_COLUMNS}


def _is_names(file: Path) -> bool:
    header = csv_header(file)
    return len(header) == 2 and (header[0].startswith("/m/") or header[0] == "LabelName")


@register(
    "open_images",
    "Open Images CSV",
    lambda folder: [f for f in folder.with_suffix(".csv") if folder.memoized(_is_boxes, f)],
)
def read_open_images(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads CSV files; rows of images that are not in the folder are counted and left out.

    A Confidence of 0 says that the object is not there; an empty one says nothing.
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
                    [tuple(number(row[side]) for side in _COLUMNS) for row in boxes],  # type: ignore[misc]
                    split=stated or folder_split(path.relative_to(folder.root)),
                    relative=True,
                    is_crowd=[row.get("IsGroupOf") == "1" for row in boxes],
                    truncated=[row.get("IsTruncated") == "1" for row in boxes],
                )
            )
    return reading


def _names(folder: DataFolder) -> Mapping[str, str]:
    """Returns the readable name of each label, as `/m/0cmf2`."""
    files = [f for f in folder.with_suffix(".csv") if folder.memoized(_is_names, f)]
    rows = (row for file in files for row in csv.reader(read_lines(file)))
    return {row[0]: row[1].strip() for row in rows if len(row) == 2 and row[0] != "LabelName"}
