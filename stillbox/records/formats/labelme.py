"""LabelMe JSON: one file for each image, shapes of points in pixels.

`imageData` may hold the image file in Base64.
"""

import base64
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.records.data_folder import DataFolder, folder_split
from stillbox.records.formats.build import NO_BOX, Box, bounds, labelled
from stillbox.records.formats.registry import FolderContents, register
from stillbox.records.formats.sniff import json_outline
from stillbox.records.guarded import number, parse_int, read_json
from stillbox.records.problems import ConversionLog

_WITH_AREA = ("rectangle", "polygon", "circle", "mask")


def _is_labelme(folder: DataFolder, file: Path) -> bool:
    outline = json_outline(folder, file)
    return not outline.is_list and outline.keys >= {"shapes", "imagePath"}


@register(
    "labelme",
    "LabelMe JSON",
    lambda folder: [f for f in folder.with_suffix(".json") if _is_labelme(folder, f)],
)
def read_labelme(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads JSON files; polygons and circles become the boxes around them."""
    reading = FolderContents()
    for file in files:
        try:
            content = folder.json(file)
        except UserError as error:
            log.bad_record("annotation file is no JSON", folder.relative(file), error.what)
            continue
        image = _image(folder, file, content, log)
        if image is None:
            continue
        path, stored = image
        where = folder.relative(file)
        names: list[str] = []
        boxes: list[Box] = []
        for place, shape in enumerate(
            content["shapes"] if isinstance(content["shapes"], list) else []
        ):
            box = _box(shape)
            if box == NO_BOX:
                log.bad_box("shape without a box", f"{where}, shape {place}", _kind(shape))
                continue
            names.append(str(shape.get("label", "")).strip())
            boxes.append(box)
        size = (parse_int(content.get("imageHeight")), parse_int(content.get("imageWidth")))
        split = folder_split(file.relative_to(folder.root))
        reading.images.append(
            labelled(path, where, names, boxes, size=size, split=split, stored=stored)
        )
    return reading


def _image(
    folder: DataFolder,
    file: Path,
    content: dict[str, Any],
    log: ConversionLog,
) -> tuple[Path, Callable[[], bytes] | None] | None:
    """Returns the image file, or what returns the embedded image; None if it is left out."""
    near = folder.image_of_stem(file.stem, file)
    if near is not None:
        return near, None
    embedded = partial(_embedded, file) if isinstance(content.get("imageData"), str) else None
    try:
        path = folder.image(str(content["imagePath"]), file, file.parent, log)
    except UserError:
        if embedded is None:
            raise
        return file.with_suffix(".img"), embedded  # the name leads elsewhere; nothing is opened
    # os.path: a name that is too long for a file is no error.
    there = path is not None and os.path.isfile(path)  # noqa: PTH113
    return None if path is None else (path, None if there else embedded)


def _embedded(file: Path) -> bytes:
    """Returns the embedded image, which is read when it is wanted: all may exceed the memory."""
    return base64.b64decode(read_json(file)["imageData"], validate=True)


def _kind(shape: Any) -> str:  # noqa: ANN401
    return str(shape.get("shape_type", "polygon")) if isinstance(shape, dict) else "no shape"


def _box(shape: Any) -> Box:  # noqa: ANN401
    """Returns the box of a shape, `NO_BOX` for points and lines."""
    if not isinstance(shape, dict) or _kind(shape) not in _WITH_AREA:
        return NO_BOX
    points = shape.get("points")
    if not isinstance(points, list) or not all(isinstance(p, list) and len(p) == 2 for p in points):
        return NO_BOX
    pairs = [(number(x), number(y)) for x, y in points]
    if _kind(shape) == "circle" and len(pairs) == 2:
        (x, y), (u, v) = pairs
        radius = math.hypot(x - u, y - v)
        pairs = [(x - radius, y - radius), (x + radius, y + radius)]
    return bounds(pairs)
