"""The grid of tiles that a large image is cut into, for records (`tiling`) and predictions."""

import math

from stillbox.errors import UserError
from stillbox.references import Parameter

LEAST_TILE = 32
_MOST_OVERLAP = 0.9

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
    if not 0 <= overlap <= _MOST_OVERLAP:
        problem = f"neighbouring tiles cannot share {overlap:g} of their side"
        fix = f"give a share from 0 to {_MOST_OVERLAP}, such as 0.2"
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


def _starts(side: int, tile: int, overlap: float) -> list[int]:
    """Returns the first pixels of the tiles along a side, at equal distances."""
    if side <= tile:
        return [0]
    step = tile - math.ceil(tile * overlap)
    count = 1 + math.ceil((side - tile) / step)
    return [(side - tile) * number // (count - 1) for number in range(count)]
