"""Helpers of several formats: outlines of files, images of plain values, boxes of shapes."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stillbox.errors import UserError
from stillbox.records.annotations import (
    MAX_ANNOTATION_BYTES,
    AnnotatedImage,
    Json,
    json_object,
    read_head,
    xml_root,
)
from stillbox.records.data_folder import DataFolder, Split
from stillbox.records.formats.registry import Labelled
from stillbox.untrusted import read_untrusted

Box = tuple[float, float, float, float]
"""ymin, xmin, ymax, xmax."""
NO_BOX: Box = (math.nan,) * 4


def labelled(
    path: Path,
    where: str,
    names: Sequence[str],
    boxes: Sequence[Box],
    *,
    size: tuple[int, int] = (0, 0),
    split: Split | None = None,
    relative: bool = False,
    is_crowd: Sequence[bool] = (),
    truncated: Sequence[bool] = (),
    stored: Callable[[], bytes] | None = None,
) -> Labelled:
    """Returns the annotation of the image `path`: names and boxes, and fields of `AnnotatedImage`.

    `size` is the height and width that the annotation claims, `split` the split that the format
    states. Image id and file name are the name of the file.
    """
    image = AnnotatedImage(
        path=path,
        where=where,
        image_id=path.name,
        filename=path.name,
        height=size[0],
        width=size[1],
        pixel_boxes=np.array(boxes, np.float64).reshape(-1, 4),
        class_ids=np.zeros(len(boxes), np.int32),
        relative=relative,
        is_crowd=np.array(is_crowd, np.bool_),
        truncated=np.array(truncated, np.bool_),
        stored=stored,
    )
    return Labelled(image, list(names), split)


def bounds(points: Sequence[tuple[float, float]]) -> Box:
    """Returns the box around points (x, y); NaN without points."""
    if not points:
        return NO_BOX
    xs, ys = zip(*points, strict=True)
    # min and max ignore a NaN that is not the first.
    if any(map(math.isnan, (*xs, *ys))):
        return NO_BOX
    return min(ys), min(xs), max(ys), max(xs)


def rotated(box: Box, degrees: float, *, centre: bool) -> Box:
    """Returns the box around a box turned clockwise about its centre or its first corner."""
    if not math.isfinite(degrees):
        return NO_BOX
    ymin, xmin, ymax, xmax = box
    x, y = ((xmin + xmax) / 2, (ymin + ymax) / 2) if centre else (xmin, ymin)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    corners = [(cx - x, cy - y) for cx in (xmin, xmax) for cy in (ymin, ymax)]
    return bounds([(x + c * u - s * v, y + s * u + c * v) for u, v in corners])


NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JsonOutline:
    """The keys of a JSON file."""

    keys: frozenset[str] = NOTHING
    """The keys of the object; if `is_list`, those of the first object of the list."""
    is_list: bool = False
    inner: dict[str, frozenset[str]] = field(default_factory=dict)
    """Keys of the first object in each list of the object."""


def json_outline(folder: DataFolder, file: Path) -> JsonOutline:
    """Returns the keys of a JSON file, none if it is not JSON."""
    return folder.memoized(_outline, file, folder.json)


def json_files(accepts: Callable[[JsonOutline], bool], folder: DataFolder) -> list[Path]:
    """Returns the JSON files of a folder whose outline a function accepts."""
    return [file for file in folder.with_suffix(".json") if accepts(json_outline(folder, file))]


def _outline(file: Path, read: Callable[[Path], Json]) -> JsonOutline:
    try:
        content = read(file)
    except UserError:
        return JsonOutline()
    if isinstance(content, list):
        return JsonOutline(_keys(content), is_list=True)
    fields = json_object(content)
    lists = {key: _keys(value) for key, value in fields.items() if isinstance(value, list)}
    return JsonOutline(frozenset(fields), inner=lists)


def _keys(values: list[Json]) -> frozenset[str]:
    return frozenset(json_object(values[0])) if values else NOTHING


def xml_outline(path: Path) -> tuple[str, frozenset[str]]:
    """Returns the root element of an XML file, and which elements occur that tell the format."""
    root = xml_root(read_head(path))
    if root not in ("annotation", "annotations"):
        return root, NOTHING
    content = read_untrusted(path, most=MAX_ANNOTATION_BYTES)
    marks = ("bndbox", "polygon", "object", "image", "track")
    return root, frozenset(
        m for m in marks if any(f"<{m}{end}".encode() in content for end in "> ")
    )


def csv_header(path: Path) -> tuple[str, ...]:
    """Returns the first row of a CSV file, empty if it is not text."""
    try:
        errors = "strict" if path.stat().st_size < 65536 else "ignore"
        text = read_head(path).decode("utf-8-sig", errors)
        # Lines end as for `read_csv`.
        return tuple(next(csv.reader(io.StringIO(text, newline=""), strict=True), ()))
    except (ValueError, OSError, csv.Error):
        return ()
