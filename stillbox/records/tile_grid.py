"""The grid of tiles that a large image is cut into, and the boxes that a tile shows.

For records (`tiling`), training and predictions.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.references import Parameter

# The ranges of `schema.Tiles` are the same.
LEAST_TILE, MOST_OVERLAP = 32, 0.9
LEAST_VISIBLE = 0.1
"""A box is left out of a tile that shows less than this share of its area."""

TileWindow = tuple[int, int, int, int]
"""`ymin, xmin, ymax, xmax` in pixels of the image."""


def check_grid(tile: int, overlap: float) -> None:
    """Checks the sizes of a grid.

    Raises:
        UserError: the tile is too small, or neighbours share too much.
    """
    if tile < LEAST_TILE:
        fix = f"give {LEAST_TILE} or more; best is about the size of the network input"
        raise UserError(f"a tile of {tile} pixels is too small", where=Parameter("tile"), fix=fix)
    if not 0 <= overlap <= MOST_OVERLAP:
        problem = f"neighbouring tiles cannot share {overlap:g} of their side"
        fix = f"give a share from 0 to {MOST_OVERLAP}, such as 0.2"
        raise UserError(problem, where=Parameter("overlap"), fix=fix)


def tile_windows(height: int, width: int, tile: int, overlap: float) -> list[TileWindow]:
    """Returns the windows of square tiles that cover an image, row by row.

    Sides are in pixels; neighbours share at least `overlap` of a tile's side. Tiles lie at equal
    distances. A side of the image that is shorter than the tile has one tile, as long as the side.
    """
    rows, columns = (_starts(side, tile, overlap) for side in (height, width))
    return [
        (top, left, min(top + tile, height), min(left + tile, width))
        for top in rows
        for left in columns
    ]


@lru_cache(maxsize=64)
def image_windows(
    height: int, width: int, tile: int, overlap: float, *, whole_image: bool
) -> tuple[TileWindow, ...]:
    """Returns the windows of an image in their order, perhaps with the whole image as the last.

    An image that fits into one tile has that window alone; for the arguments see `tile_windows`.
    """
    tiles, whole = tile_windows(height, width, tile, overlap), (0, 0, height, width)
    return (*tiles, whole) if whole_image and tiles != [whole] else tuple(tiles)


def _starts(side: int, tile: int, overlap: float) -> list[int]:
    """Returns the first pixels of the tiles along a side, at equal distances."""
    if side <= tile:
        return [0]
    step = tile - math.ceil(tile * overlap)
    count = 1 + math.ceil((side - tile) / step)
    return [(side - tile) * number // (count - 1) for number in range(count)]


class VisibleBoxes(NamedTuple):
    """The K of N boxes that a tile shows enough of."""

    kept: NDArray[np.bool_]
    """`[N]`"""
    boxes: NDArray[np.float32]
    """`[K, 4]`, clipped to the tile and normalised to it."""
    shares: NDArray[np.float64]
    """`[K]`, the share of each box's area that the tile shows."""


def visible_boxes(
    boxes: NDArray[np.floating], window: TileWindow, least: float = LEAST_VISIBLE
) -> VisibleBoxes:
    """Returns the boxes, `[N, 4]` in pixels of the image, with at least a share in a window."""
    ymin, xmin, ymax, xmax = window
    shares = visible_shares(boxes, window)
    kept = shares >= least
    frame = np.array([ymax - ymin, xmax - xmin] * 2)
    inside = (_clipped(boxes[kept], window) - [ymin, xmin, ymin, xmin]) / frame
    return VisibleBoxes(kept, inside.astype(np.float32), shares[kept])


def visible_shares(boxes: NDArray[np.floating], window: TileWindow) -> NDArray[np.float64]:
    """Returns the share of the area of each box, `[N, 4]` in pixels of the image, in a window."""
    return _areas(_clipped(boxes, window)) / np.maximum(_areas(boxes), 1e-12)


def _clipped(boxes: NDArray[np.floating], window: TileWindow) -> NDArray[np.floating]:
    ymin, xmin, ymax, xmax = window
    return np.clip(boxes, (ymin, xmin, ymin, xmin), (ymax, xmax, ymax, xmax))


def _areas(boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    sides = boxes[:, 2:] - boxes[:, :2]
    return np.asarray(sides[:, 0] * sides[:, 1])
