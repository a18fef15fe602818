"""A training set in numbers: images, boxes, and the sizes of the boxes of each class."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from stillbox.checking.data import read_truth
from stillbox.evaluation.anchor_cells import LEAST_CELLS
from stillbox.evaluation.ground_truth import SAMPLE
from stillbox.experiment.schema import FixedShapeResizer, Records, Tiles
from stillbox.inputs.tiles import windows_of
from stillbox.printing import count_text
from stillbox.records.class_counts import ClassCount, ClassCounter
from stillbox.records.image_files import inspect_image
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError
from stillbox.records.source import ExampleSource, spread_indices

# A class with fewer boxes has no tenth of them.
_COUNTED = 10


@dataclass(frozen=True, eq=False)
class BoxSizes:
    """The sides of N boxes; a side is the root of a box's area."""

    shares: NDArray[np.float32]
    """Sides as shares of the side of the image, which is the root of its area too."""
    pixels: NDArray[np.float32]
    """Sides in pixels of the stored image."""
    class_ids: NDArray[np.int32]
    names: Mapping[int, str] = field(default_factory=dict)
    """Display names by class id."""

    def stretched(self, height: int, width: int) -> "Sides":
        """Returns the sides in a network input that each image is stretched to."""
        return Sides(self, self.shares * float(np.sqrt(height * width)))

    def magnified(self, factor: float) -> "Sides":
        """Returns the sides in an input with so many pixels for each pixel of the image."""
        return Sides(self, self.pixels * factor)

    def quantiles(self, *parts: float) -> list[float]:
        """Returns the sides, as shares, that so large parts of all boxes fall short of."""
        return np.quantile(self.shares if len(self.shares) else [1.0], parts).tolist()

    def least_pixels(self) -> float:
        """Returns the side that nine tenths of the boxes of each class exceed, in stored pixels."""
        tenths = (np.quantile(self.pixels[rows], 0.1) for rows in self.of_classes().values())
        return float(min(tenths, default=1.0))

    def of_classes(self) -> dict[str, NDArray[np.bool_]]:
        """Returns the rows of each class that has enough boxes, by name.

        A set without such a class has one group, all boxes.
        """
        numbers, counts = np.unique(self.class_ids, return_counts=True)
        enough = numbers[counts >= _COUNTED].tolist()
        rows = {self.names.get(n, f"class {n}"): self.class_ids == n for n in enough}
        whole = {"all": np.ones(len(self.pixels), np.bool_)} if len(self.pixels) else {}
        return rows or whole


@dataclass(frozen=True)
class Sides:
    """Boxes with their sides in pixels of a network input."""

    of: BoxSizes
    sides: NDArray[np.float32]

    def resolved(self, stride: int) -> dict[str, float]:
        """Returns the share of each class's boxes with two cells of a feature map or more."""
        return {
            name: float(np.mean(self.sides[rows] >= LEAST_CELLS * stride))
            for name, rows in self.of.of_classes().items()
        }

    def credit(self, stride: int) -> float:
        """Returns the mean over the classes of how well their boxes are resolved, 0 to 1.

        A box counts from one cell on, and fully from two.
        """
        counted = np.clip(self.sides / stride - 1, 0, 1)
        means = [float(counted[rows].mean()) for rows in self.of.of_classes().values()]
        return sum(means) / len(means) if means else 1.0


_LEAST_BOXES = 20
# Images have one shape if so many differ from the usual one by no more than this factor.
_ONE_SHAPE, _SAME = 0.9, 1.15


@dataclass(frozen=True, kw_only=True)
class DatasetStats:
    """A training set in numbers."""

    images: int
    boxes: int
    """Boxes of all images, extrapolated if only some were read."""
    classes: int
    """Of the label map, without the gaps between its ids."""
    max_boxes: int
    """At least as many as the fullest image that was read has, with room to spare."""
    height: int
    """The median, in pixels; likewise `width`."""
    width: int
    one_shape: bool
    """Whether nearly all images have the ratio of sides of the median."""
    sizes: BoxSizes
    class_counts: tuple[ClassCount, ...] = ()
    """How often the classes occur, extrapolated likewise."""

    def of_samples(self, tiles: Tiles | None) -> "DatasetStats":
        """Returns the numbers with as many images as an epoch has samples.

        Args:
            tiles: that each image is cut into; None: images are whole.
        """
        if tiles is None:
            return self
        return replace(self, images=self.images * len(windows_of(tiles, (self.height, self.width))))

    def describe(self) -> str:
        """Returns a phrase."""
        small, median = self.sizes.quantiles(0.1, 0.5)
        return (
            f"{count_text(self.images, 'training image')}, {count_text(self.boxes, 'box')}, "
            f"{count_text(self.classes, 'class')}; half of the boxes are shorter than "
            f"{100 * median:.0f} % of the image, one in ten than {100 * small:.0f} %"
        )


def read_dataset_stats(records: Records) -> DatasetStats:
    """Reads the numbers of a training set; no image is decoded.

    Raises:
        UserError: there are no records or there is no label map.
    """
    label_map = LabelMap.from_file(records.label_map)
    source = ExampleSource(records.paths, label_map, bad_records="drop")
    indices = spread_indices(len(source), SAMPLE)
    seen = [image for image in ordered_map(partial(_boxes_of, source), indices) if image]
    numbers = [len(boxes) for boxes, _, _ in seen]
    boxes = np.concatenate([np.zeros((0, 4), np.float32), *(boxes for boxes, _, _ in seen)])
    class_ids = np.concatenate([np.zeros(0, np.int32), *(ids for _, ids, _ in seen)])
    image_sizes = np.array([size for _, _, size in seen] or [(1, 1)], np.float32)
    height, width = np.median(image_sizes, axis=0)
    aspects = image_sizes[:, 1] / image_sizes[:, 0] * (height / width)
    # The boxes are relative to their images.
    shares = np.sqrt(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    areas = np.repeat(np.prod(image_sizes, axis=1)[: len(numbers)], numbers)
    counter, times = ClassCounter(), len(source) / max(len(indices), 1)
    for _, ids, _ in seen:
        counter.add(ids.tolist())
    return DatasetStats(
        images=len(source),
        boxes=round(len(boxes) * times),
        classes=len(label_map),
        max_boxes=_room(max(numbers, default=0)),
        height=round(float(height)),
        width=round(float(width)),
        one_shape=bool(np.mean(np.maximum(aspects, 1 / aspects) < _SAME) >= _ONE_SHAPE),
        sizes=BoxSizes(shares, shares * np.sqrt(areas), class_ids, label_map.names),
        class_counts=counter.counts(label_map.names, times),
    )


def room_in_tiles(records: Records, tiles: Tiles) -> int:
    """Returns room for the boxes of the fullest tile, as `DatasetStats.max_boxes` for an image."""
    source = ExampleSource(records.paths, LabelMap.from_file(records.label_map), bad_records="drop")
    truth = read_truth(source, FixedShapeResizer(height=1, width=1), tiles=tiles, limit=SAMPLE)
    return _room(int(np.diff(truth.starts).max(initial=0)))


def _room(fullest: int) -> int:
    return max(_LEAST_BOXES, fullest + -fullest % 10)


_ImageBoxes = tuple[NDArray[np.float32], NDArray[np.int32], tuple[int, int]]


def _boxes_of(source: ExampleSource, index: int) -> _ImageBoxes | None:
    """Returns relative boxes, classes, height and width of an image; None: it is not usable."""
    example = source.example(index)
    try:
        facts = example and inspect_image(example.encoded, whole=False)
    except BadRecordError:
        return None
    if example is None or facts is None:
        return None
    counts = example.weights > 0
    return example.boxes[counts], example.class_ids[counts], (facts.height, facts.width)
