"""What the readers of several formats need: an annotated image of plain values, boxes of shapes."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.records.annotated import AnnotatedImage
from stillbox.records.data_folder import Split
from stillbox.records.formats.registry import Labelled

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
    stored: Callable[[], bytes] | None = None,
    **columns: Sequence[Any],
) -> Labelled:
    """Returns the annotation of the image `path`.

    Args:
        path: the image file.
        where: annotation file and image, for messages.
        names: class of each box.
        boxes: in pixels, or in fractions of the sides if `relative`.
        size: height and width that the annotation claims, 0 if it does not.
        split: the split that the format states.
        relative: see `boxes`.
        stored: returns the image file, where it is part of another file.
        columns: further columns of `AnnotatedImage`, as `truncated`.
    """
    flags = {name: np.array(values, np.bool_) for name, values in columns.items()}
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
        stored=stored,
        **flags,  # type: ignore[arg-type]
    )
    return Labelled(image, list(names), split)


def bounds(points: Sequence[tuple[float, float]]) -> Box:
    """Returns the box around points (x, y); NaN without points."""
    if not points:
        return NO_BOX
    xs, ys = zip(*points, strict=True)
    # min and max pass over a NaN that is not the first.
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
