"""Counts the boxes, classes and images of a set of records, and collects their problems.

Whether a fault is a single case or a fault of the whole set is decided after the last record.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stillbox.checking import findings as found
from stillbox.experiment.schema import Tiles
from stillbox.inputs.tiles import windows_of
from stillbox.printing import count_text
from stillbox.records.example import CLASS_ZERO, Example, first_equal
from stillbox.records.image_files import ImageInfo
from stillbox.records.label_map import LabelMap
from stillbox.records.pixels import FEW_VALUES
from stillbox.records.problems import ProblemLog
from stillbox.records.source import ExampleSource
from stillbox.records.tile_grid import visible_boxes

Boxes = NDArray[np.float32]
"""`[N, 4]`, normalised."""

# A pixel, less the rounding of float32.
_PIXEL = 0.99
_WHOLE = 0.99
"""Least share of both sides of an image in a box that covers it."""
_MANY, _MOST = 0.1, 0.5
"""Shares of the boxes of a set."""
_LONG = 1_000
"""Characters of an image id; conversions take names of files."""
_MANY_BOXES = 10
"""Boxes of a class on average."""


def _shown(image_id: str) -> str:
    if len(image_id) <= _LONG:
        return repr(image_id)
    return f"{count_text(len(image_id), 'character')}, the first {image_id[:20]!r}"


class Tally:
    """Counts and problems of all records.

    An image costs some 300 bytes, whatever its size.
    """

    def __init__(
        self,
        source: ExampleSource,
        label_map: LabelMap | None,
        num_classes: int,
        tiles: Tiles | None,
    ) -> None:
        self.source, self.label_map, self._tiles = source, label_map, tiles
        self.num_classes = num_classes
        self.log = ProblemLog()
        self.images = self.boxes = self.most_boxes = 0
        self.tiles = self.oversized = 0
        self.class_boxes: Counter[int] = Counter()
        self._image_ids: dict[str, int] = {}
        self._first_copies: dict[int, tuple[int, int]] = {}

    def add(self, index: int, example: Example, image: ImageInfo, checksum: int) -> None:
        """Counts a record; `checksum` has 64 bits and is of its image file."""
        where = self.source.location(index)
        self.images += 1
        self._add_image(where, (example.height, example.width), image)
        self._add_copies(index, where, example, checksum)
        self._add_number(where, self._numbers(example.boxes, (image.height, image.width)))
        self.boxes += len(example.boxes)
        self._add_boxes(where, example, image)
        self._add_classes(where, example.class_ids.tolist())

    def _add_image(self, where: str, claimed: tuple[int, int], image: ImageInfo) -> None:
        if min(claimed) > 0 and claimed != (image.height, image.width):
            sizes = f"record {claimed[1]} x {claimed[0]}, image {image.width} x {image.height}"
            self.log.add("size is not the image's", where, sizes, action="the image's is used")
        if image.orientation != 1:
            self.log.add("EXIF orientation", where, str(image.orientation), action="ignored")
        if image.mode == "CMYK":
            self.log.add("CMYK image", where)
        if image.format not in ("JPEG", "MPO", "PNG"):
            self.log.add("neither JPEG nor PNG", where, image.format)
        if image.few_values:
            reason = found.ONE_COLOUR if image.few_values == 1 else FEW_VALUES
            self.log.add(reason, where, f"{image.few_values} of 256")

    def _add_copies(self, index: int, where: str, example: Example, checksum: int) -> None:
        """Compares a record with all before it by its image id and by its image."""
        former = self._image_ids.setdefault(example.image_id, index)
        if former != index:
            also = f"{_shown(example.image_id)} is also {self.source.location(former)}"
            self.log.add("image id occurs twice", where, also)
        if len(example.image_id) > _LONG:
            self.log.add(found.LONG_ID, where, _shown(example.image_id))
        boxes = hash((example.boxes.tobytes(), example.class_ids.tobytes()))
        first, boxes_of_first = self._first_copies.setdefault(checksum, (index, boxes))
        if first != index:
            same_set = self.source.set_of(first) == self.source.set_of(index)
            other = ", with other boxes" * (boxes != boxes_of_first)
            also = f"as {self.source.location(first)}{other}"
            self.log.add(found.IMAGE_TWICE if same_set else found.SHARED_IMAGE, where, also)

    def _numbers(self, boxes: Boxes, size: tuple[int, int]) -> list[int]:
        """Returns the number of boxes in the image, or in each tile."""
        if self._tiles is None:
            return [len(boxes)]
        pixels = boxes * np.array(size * 2, np.float64)
        self.oversized += int(((pixels[:, 2:] - pixels[:, :2]) > self._tiles.side).any(1).sum())
        windows = windows_of(self._tiles, size)
        return [int(visible_boxes(pixels, window).kept.sum()) for window in windows]

    def _add_number(self, where: str, counts: list[int]) -> None:
        self.tiles += len(counts)
        count = max(counts)
        self.most_boxes = max(self.most_boxes, count)
        if not count:
            self.log.add("image without a box", where, action="used as background")

    def _add_boxes(self, where: str, example: Example, image: ImageInfo) -> None:
        """Compares the boxes with their image and with each other."""
        sizes = np.array([image.height, image.width], np.float32)
        sides = (example.boxes[:, 2:] - example.boxes[:, :2]) * sizes
        cornered = (example.boxes[:, 2:] * sizes < 2 - _PIXEL).all(axis=1)
        kinds = {
            found.IN_FIRST_PIXEL: cornered,
            found.BELOW_A_PIXEL: (sides < _PIXEL).all(axis=1) & ~cornered,
            found.WHOLE_IMAGE: (sides >= _WHOLE * sizes).all(axis=1) & ~cornered,
        }
        for reason, which in kinds.items():
            for height, width in sides[which].tolist():
                self.log.add(reason, where, f"{width:.3g} x {height:.3g} pixels")
        self._add_repetitions(where, example)

    def _add_repetitions(self, where: str, example: Example) -> None:
        class_ids = example.class_ids.tolist()
        for row, count in Counter(first_equal(class_ids, example.boxes)).items():
            if count > 1:
                self.log.add(found.BOX_TWICE, where, f"class id {class_ids[row]}, {count} times")

    def _add_classes(self, where: str, class_ids: list[int]) -> None:
        self.class_boxes.update(class_ids)
        for class_id in class_ids:
            if class_id > self.num_classes > 0:
                beyond = f"{class_id} > {self.num_classes}"
                self.log.add("class id above num_classes", where, beyond)

    def finish(self, *, whole: bool) -> ProblemLog:
        """Returns all problems of the records; not `whole`: some records were left out."""
        if not self.boxes:
            self.log.add("no box in any record", self.source.files[0].path.name)
        self._add_rare_classes(whole)
        problems = [*self.source.problems, *self.log]
        counts: Counter[str] = Counter()
        for problem in problems:
            counts[problem.reason] += problem.count
        meanings, log = self._meanings(counts), ProblemLog()
        log.extend(replace(p, reason=meanings.get(p.reason, p.reason)) for p in problems)
        return log

    def _add_rare_classes(self, whole: bool) -> None:
        names = self.label_map.names if self.label_map else {}
        for class_id in sorted(names.keys() - self.class_boxes.keys()):
            self.log.add("class without a box", f"id {class_id}", names[class_id])
        # In a set of a few boxes every class is rare, and in a part of the set any can be.
        if whole and self.boxes >= _MANY_BOXES * len(self.class_boxes):
            for class_id in sorted(self.class_boxes):
                if self.class_boxes[class_id] == 1:
                    self.log.add(found.ONE_BOX, f"id {class_id}", names.get(class_id, ""))

    def _meanings(self, counts: Mapping[str, int]) -> dict[str, str]:
        """Returns what the reasons mean that depend on how much of the set has them."""
        cornered, most = counts[found.IN_FIRST_PIXEL], _MOST * self.boxes
        twice = cornered > most
        tiny = counts[found.BELOW_A_PIXEL] + cornered * (not twice)
        below = found.MOST_BELOW_A_PIXEL if tiny > most else found.BELOW_A_PIXEL
        many = counts[found.WHOLE_IMAGE] >= _MANY * self.boxes
        return {
            found.IN_FIRST_PIXEL: found.DIVIDED_TWICE if twice else below,
            found.BELOW_A_PIXEL: below,
            found.WHOLE_IMAGE: found.MANY_WHOLE_IMAGES if many else found.WHOLE_IMAGE,
            CLASS_ZERO: found.LABELS_FROM_ZERO if self._counts_from_zero() else CLASS_ZERO,
        }

    def _counts_from_zero(self) -> bool:
        """Tells whether the greatest label is one below the greatest id, if that is known."""
        greatest = self.label_map.max_id if self.label_map else self.num_classes
        return not greatest or max(self.class_boxes, default=0) == greatest - 1
