"""From detections in the rows of batches to detections in images: whole ones, or through tiles."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stillbox.evaluation.results import ImageResult, ImageTruth, RawDetections, not_finite
from stillbox.evaluation.tiling import Tiling
from stillbox.experiment import schema
from stillbox.inputs.tiles import ImageTiles, windows_of
from stillbox.printing import count_text
from stillbox.records.tile_grid import TileWindow, visible_boxes


def truths_in_views(
    truths: Sequence[ImageTruth], tiles: schema.Tiles | None
) -> Sequence[ImageTruth]:
    """Returns the ground truth of each image that the network sees: an image, or a tile of one."""
    if tiles is None:
        return truths
    return [view for truth in truths for view in _in_tiles(truth, tiles)]


def _in_tiles(truth: ImageTruth, tiles: schema.Tiles) -> Iterator[ImageTruth]:
    for window in windows_of(tiles, (truth.height, truth.width)):
        ymin, xmin, ymax, xmax = window
        seen = visible_boxes(truth.boxes, window)
        yield replace(
            truth,
            height=ymax - ymin,
            width=xmax - xmin,
            boxes=seen.boxes.astype(np.float64) * np.tile([ymax - ymin, xmax - xmin], 2),
            class_ids=truth.class_ids[seen.kept],
            is_crowd=truth.is_crowd[seen.kept],
            is_difficult=truth.is_difficult[seen.kept],
            area=truth.area[seen.kept],
        )


class Views:
    """Collects the detections in each view of each image, which is the whole image or a tile.

    The detections of an image are merged as soon as all of its views are there.
    """

    def __init__(self, truths: Mapping[int, ImageTruth], tiles: ImageTiles | None) -> None:
        self.truths = truths
        self.results: dict[int, ImageResult | None] = {}
        """By record; None: the data policy left the image out."""
        self._tiles = tiles
        self._tiling = Tiling.of(tiles.settings) if tiles is not None else None
        self._pending: dict[int, dict[int, RawDetections | None]] = {}
        self._brought: Counter[int] = Counter()

    def size(self, sample: int) -> tuple[int, int]:
        """Returns height and width of a view, in pixels."""
        record, (ymin, xmin, ymax, xmax) = self._locate(sample)
        self._refuse_unknown(record)
        return ymax - ymin, xmax - xmin

    def add(self, sample: int, detections: RawDetections | None) -> None:
        """Adds the detections in a view, in its pixels; None: the policy left the image out.

        Raises:
            UserError: the predictions for it are not finite.
        """
        record, _ = self._locate(sample)
        if detections is not None and not detections.finite:
            raise not_finite(f"image {self.truths[record].image_id}")
        self._brought[sample] += 1
        views = self._pending.setdefault(record, {})
        views[sample] = detections
        if len(views) == len(self._windows(record)):
            self.results[record] = self._merged(record, self._pending.pop(record))

    def check_complete(self) -> None:
        """Checks that every view came once. Anything else is a bug in the loader."""
        samples = [sample for sample, times in self._brought.items() if times > 1]
        twice = sorted({self._locate(sample)[0] for sample in samples})
        lost = sorted(self.truths.keys() - self.results.keys())
        if twice or lost:
            raise RuntimeError(
                f"the loader brought {count_text(len(twice), 'record')} more than once (first "
                f"{twice[:3]}) and {len(lost)} not at all (first {lost[:3]}): the scores would be "
                "wrong"
            )

    def _locate(self, sample: int) -> tuple[int, TileWindow]:
        if self._tiles is not None:
            return self._tiles.locate(sample)
        self._refuse_unknown(sample)
        return sample, self._windows(sample)[0]

    def _refuse_unknown(self, record: int) -> None:
        if record not in self.truths:
            raise RuntimeError(f"the loader brought record {record}, which is not to be scored")

    def _windows(self, record: int) -> tuple[TileWindow, ...]:
        if self._tiles is not None:
            return self._tiles.windows(record)
        truth = self.truths[record]
        return ((0, 0, truth.height, truth.width),)

    def _merged(self, record: int, views: Mapping[int, RawDetections | None]) -> ImageResult | None:
        seen = [views[sample] for sample in sorted(views)]
        present = [detections for detections in seen if detections is not None]
        if len(present) < len(seen):
            return None
        merged = present[0]
        if self._tiling is not None:
            merged = self._tiling.merged(present, self._windows(record))
        return ImageResult(
            image_id=self.truths[record].image_id,
            boxes=merged.boxes,
            scores=merged.scores,
            class_ids=merged.class_ids,
        )
