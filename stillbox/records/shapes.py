"""The boxes around shapes: points, rotated boxes, ellipses, and COCO's polygons and run lengths.

Run lengths alternate between background and object, down the columns of a mask. As text each is a
number in groups of five bits, from the third on as the difference to the one before the last.
Source: cocoapi, `common/maskApi.c`, `rleToBbox` and `rleFrString`.
"""

import math
from collections.abc import Sequence

import numpy as np

from stillbox.records.foreign_files import Json, json_list, number

Box = tuple[float, float, float, float]
"""ymin, xmin, ymax, xmax."""
NO_BOX: Box = (math.nan,) * 4


def bounds(points: Sequence[tuple[float, float]]) -> Box:
    """Returns the box around points (x, y); NaN without points."""
    if not points:
        return NO_BOX
    xs, ys = zip(*points, strict=True)
    # min and max ignore a NaN that is not the first.
    bad = any(map(math.isnan, (*xs, *ys)))
    return NO_BOX if bad else (min(ys), min(xs), max(ys), max(xs))


def rotated(box: Box, degrees: float, *, centre: bool) -> Box:
    """Returns the box around a box turned clockwise about its centre or its first corner."""
    if not math.isfinite(degrees):
        return NO_BOX
    ymin, xmin, ymax, xmax = box
    x, y = ((xmin + xmax) / 2, (ymin + ymax) / 2) if centre else (xmin, ymin)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    corners = [(cx - x, cy - y) for cx in (xmin, xmax) for cy in (ymin, ymax)]
    return bounds([(x + c * u - s * v, y + s * u + c * v) for u, v in corners])


def around_ellipse(centre: tuple[float, float], rx: float, ry: float, degrees: float) -> Box:
    """Returns the box around an ellipse that is turned about its centre (x, y)."""
    if not math.isfinite(degrees):
        return NO_BOX
    (x, y), c, s = centre, math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    across, down = math.hypot(c * rx, s * ry), math.hypot(s * rx, c * ry)
    return y - down, x - across, y + down, x + across


_MOST_PIXELS = 2**40
_FIRST, _MORE, _NEGATIVE, _BITS = 48, 0x20, 0x10, 5


def segment_box(segment: Json) -> Box:
    """Returns ymin, xmin, ymax, xmax around a segment in pixels, `NO_BOX` if there is none."""
    if isinstance(segment, dict):
        return _runs_box(json_list(segment.get("size")), segment.get("counts"))
    parts = json_list(segment)
    # Some programs write one polygon without the list of polygons around it.
    polygons = [parts] if parts and not isinstance(parts[0], list) else list(map(json_list, parts))
    values = [[number(value) for value in polygon] for polygon in polygons]
    points = [p for polygon in values for p in zip(polygon[::2], polygon[1::2], strict=False)]
    return bounds(points)


def _runs_box(size: Sequence[Json], counts: Json) -> Box:
    sides = [int(side) for side in size if isinstance(side, int) and 0 < side < 2**20]
    runs = _runs_of_text(counts) if isinstance(counts, str) else json_list(counts)
    lengths = [run for run in runs if isinstance(run, int) and 0 <= run < _MOST_PIXELS]
    if len(sides) != 2 or not lengths or len(lengths) != len(runs):
        return NO_BOX
    ends = np.cumsum(np.array(lengths, np.float64))
    starts, ends = ends[0:-1:2], ends[1::2]
    starts, ends = starts[: len(ends)][ends > starts], ends[ends > starts] - 1
    if not len(ends) or ends[-1] >= sides[0] * sides[1]:
        return NO_BOX
    left, right = starts // sides[0], ends // sides[0]
    # A run through several columns reaches the lower and the upper border.
    tops = np.where(left == right, starts % sides[0], 0)
    bottoms = np.where(left == right, ends % sides[0], sides[0] - 1)
    sides_of_box = tops.min(), left.min(), bottoms.max() + 1, right.max() + 1
    ymin, xmin, ymax, xmax = map(float, sides_of_box)
    return ymin, xmin, ymax, xmax


def _runs_of_text(text: str) -> list[Json]:
    runs: list[Json] = []
    value = shift = 0
    previous = [0, 0]
    for character in text:
        group = ord(character) - _FIRST
        if not 0 <= group < 64 or shift > 50:
            return []
        value |= (group & (_MORE - 1)) << shift
        shift += _BITS
        if group & _MORE:
            continue
        if group & _NEGATIVE:
            value -= 1 << shift
        run = value + (previous[-2] if len(runs) > 2 else 0)
        runs.append(run)
        previous = [previous[-1], run]
        value = shift = 0
    return runs
