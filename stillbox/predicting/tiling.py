"""Detection in the tiles of a large image, as in SAHI (Akyon et al. 2022, arXiv:2202.06934)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stillbox.errors import UserError, nearest
from stillbox.predicting.backend import Found
from stillbox.predicting.merging import Pieces, fuse_clusters, unite_cut
from stillbox.records.tile_grid import TileWindow, check_grid, tile_windows

MERGES = ("nms", "wbf")


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How images are cut into overlapping tiles, and the detections of the tiles merged.

    Each tile is resized to the network input, so that small objects keep their pixels. An image
    that fits into one tile is not cut.

    Raises:
        UserError: a value is impossible.
    """

    tile: int
    """Side of a tile in pixels of the image."""
    overlap: float = 0.2
    """Least share of a tile's side that its neighbour covers too."""
    merge: Literal["nms", "wbf"] = "nms"
    """`nms`: of the boxes of one object, the best is kept; `wbf`: they are averaged with their
    scores as weights (weighted boxes fusion, Solovyev et al. 2021, arXiv:1910.13302)."""
    full_image: bool = True
    """Detect in the whole image too, for objects that fit into no tile."""
    iou_threshold: float = 0.5
    """Boxes of one class from different tiles with a greater overlap are one object."""

    def __post_init__(self) -> None:
        check_grid(self.tile, self.overlap)
        if self.merge not in MERGES:
            raise UserError(
                f"there is no merge {self.merge!r}", where="merge", fix=nearest(self.merge, MERGES)
            )
        if not 0 < self.iou_threshold < 1:
            raise UserError(
                f"{self.iou_threshold:g} is no overlap", where="iou_threshold", fix="0.5 is usual"
            )

    def windows(self, height: int, width: int) -> list[TileWindow]:
        """Returns the windows of an image that are detected in, the whole image last."""
        tiles = tile_windows(height, width, self.tile, self.overlap)
        whole = (0, 0, height, width)
        return [*tiles, whole] if self.full_image and tiles != [whole] else tiles

    def merged(self, found: Sequence[Found], windows: Sequence[TileWindow]) -> Found:
        """Returns the detections of the image.

        Args:
            found: the detections of each window, in pixels of the window.
            windows: in pixels of the image.
        """
        finite = all(one.finite for one in found)
        if len(found) == 1:
            return found[0]
        pieces = unite_cut(Pieces.of(found, windows), self.iou_threshold)
        merged = fuse_clusters(pieces, self.iou_threshold, average=self.merge == "wbf")
        order = np.argsort(-merged.scores, kind="stable")
        return Found(merged.boxes[order], merged.scores[order], merged.class_ids[order], finite)
