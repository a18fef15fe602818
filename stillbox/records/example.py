"""One image with its boxes, on the host, and the policy that fixes or drops unusable boxes.

Under `fix`, sides in the wrong order are swapped, parts outside the image are clipped, and pixel
coordinates are divided by the size that the record claims. Boxes that cannot be fixed are
dropped: no area, not a number, wholly outside, unknown class. Under `drop` every such box is
dropped, under `fail` the first one stops the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stillbox.records.problems import BoxPolicy


def no_flags() -> NDArray[np.bool_]:
    """Returns the empty column of flags."""
    return np.zeros(0, np.bool_)


def no_numbers() -> NDArray[np.float32]:
    """Returns the empty column of numbers."""
    return np.zeros(0, np.float32)


@dataclass(frozen=True, kw_only=True)
class Example:
    """One image as it is stored, with its ground truth. N is the number of its boxes.

    Boxes are `[ymin, xmin, ymax, xmax]`, normalised to the stored image. Class ids are the label
    map's, from 1. A column of `DEFAULTS` that is empty is filled with its default.
    """

    image_id: str
    """The record's `image/source_id`, else the file name, else `shard:record`."""
    encoded: bytes
    """JPEG or PNG, as stored."""
    filename: str = ""
    """Name of the image before it became a record."""
    height: int = 0
    """Height in pixels that the record claims, or 0."""
    width: int = 0
    """Width in pixels that the record claims, or 0."""
    boxes: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    """`[N, 4]`."""
    class_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """`[N]`, label map ids."""
    weights: NDArray[np.float32] = field(default_factory=no_numbers)
    """`[N]`, 1 counts fully, 0 is ignored by matcher and loss."""
    is_crowd: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`, COCO's crowds."""
    difficult: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`, VOC's difficult objects."""
    truncated: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`, VOC's truncated objects."""
    area: NDArray[np.float32] = field(default_factory=no_numbers)
    """`[N]`, segment area in square pixels of the stored image; NaN: not known."""

    def __post_init__(self) -> None:
        for name, default in DEFAULTS.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.boxes), default))


DEFAULTS: dict[str, np.generic] = {
    "weights": np.float32(1),
    "is_crowd": np.False_,
    "difficult": np.False_,
    "truncated": np.False_,
    "area": np.float32(np.nan),
}


NOT_A_NUMBER = "box coordinate is not a number"
IN_PIXELS = "box in pixels, not in 0..1"
INVERTED = "box inverted"
OUTSIDE = "box reaches outside the image"
WHOLLY_OUTSIDE = "box lies wholly outside the image"
NO_AREA = "box without area"
UNKNOWN_CLASS = "unknown class"
CLASS_ZERO = "class id 0"
ID_ZERO = "id 0"
"""A box with label 0 and without a class text, among the unknown classes of a record."""
COUNT_FROM_ONE = (
    "ids of classes begin at 1: write the records again with every image/object/class/label one "
    "higher, or with image/object/class/text, which has precedence"
)
"""The remedy for records with labels from 0."""

# A sixteenth of a pixel at 640: rounding errors are clipped without a report.
_ROUNDING = 1e-4
# No normalised box reaches twice its image's size; coordinates beyond that are pixels.
_PIXELS_FROM = 2.0
_PER_BOX = ("class_ids", "weights", "is_crowd", "difficult", "truncated", "area")


@dataclass(frozen=True)
class BoxProblem:
    """A fault of one box."""

    reason: str
    box: int
    """Number of the box in the record, from 0."""
    detail: str
    action: str
    """`fixed` or `dropped`; under policy `fail`, `stopped`."""


def apply_box_policy(
    example: Example, unknown: Mapping[int, str], policy: BoxPolicy, *, pixels_possible: bool = True
) -> tuple[Example, list[BoxProblem]]:
    """Returns the example with its sound boxes, and the problems of the others.

    Boxes are normalised; `unknown` has the record's names of unknown classes, which have id 0, by
    box. Under `fail`, an example with a problem is returned unchanged. Coordinates above 2 are
    pixels, except in a converter, which divides by the image size itself.
    """
    boxes = example.boxes
    if not unknown and _all_sound(boxes):
        return example, []
    review = _Review(boxes.astype(np.float64), policy)
    for box, said in sorted(unknown.items()):
        review.drop(box, CLASS_ZERO if said == ID_ZERO else UNKNOWN_CLASS, said)
    for bad in np.flatnonzero(~np.isfinite(boxes).all(axis=1)):
        review.drop(int(bad), NOT_A_NUMBER, format_box(boxes[bad]))
    if pixels_possible:
        review.fix_pixels(example.height, example.width)
    review.fix_order()
    review.fix_outside()
    if policy == "fail" and review.problems:
        return example, review.problems
    kept = review.kept
    fixed = review.boxes.astype(np.float32)
    changes = {name: getattr(example, name)[kept] for name in _PER_BOX}
    return replace(example, **changes | {"boxes": fixed[kept]}), review.problems


def _all_sound(boxes: NDArray[np.float32]) -> bool:
    low, high = boxes[:, :2], boxes[:, 2:]
    return bool(np.all((low >= 0) & (high <= 1) & (high > low)))  # NaN compares as False


def first_equal(classes: Sequence[object], boxes: NDArray[np.floating]) -> list[int]:
    """Returns the index of the first box that is the same and of the same class, for each box."""
    first: dict[object, int] = {}
    rows = zip(classes, map(tuple, boxes.tolist()), strict=True)
    return [first.setdefault(row, number) for number, row in enumerate(rows)]


def format_box(box: NDArray[np.floating]) -> str:
    """Returns the coordinates `[4]` as text."""
    ymin, xmin, ymax, xmax = (f"{value:.6g}" for value in box)
    return f"ymin {ymin}, xmin {xmin}, ymax {ymax}, xmax {xmax}"


class _Review:
    """The boxes of one example while the policy is applied."""

    def __init__(self, boxes: NDArray[np.float64], policy: BoxPolicy) -> None:
        self.boxes, self.policy = boxes, policy
        self.stored = boxes.copy()
        self.kept = np.ones(len(boxes), np.bool_)
        self.problems: list[BoxProblem] = []

    def drop(self, box: int, reason: str, detail: str = "") -> None:
        if self.kept[box]:
            self.kept[box] = False
            self._note(box, reason, detail, "stopped" if self.policy == "fail" else "dropped")

    def fix(self, box: int, reason: str, fixed: NDArray[np.float64]) -> None:
        if self.policy == "fix":
            self.boxes[box] = fixed
            self._note(box, reason, "", "fixed")
        else:
            self.drop(box, reason)

    def fix_pixels(self, height: int, width: int) -> None:
        size = np.array([height, width, height, width], np.float64)
        for box in self._where(self.boxes.max(axis=1, initial=0) > _PIXELS_FROM):
            # One pixel of grace: many tools count from 1.
            if height > 0 and width > 0 and np.all(self.boxes[box] <= size + 1):
                self.fix(box, IN_PIXELS, self.boxes[box] / size)
            else:
                detail = f"{format_box(self.stored[box])}; the size is unknown or less"
                self.drop(box, IN_PIXELS, detail)

    def fix_order(self) -> None:
        low, high = self.boxes[:, :2], self.boxes[:, 2:]
        for box in self._where(np.any(low > high, axis=1)):
            pairs = np.sort(self.boxes[box].reshape(2, 2), axis=0)
            self.fix(box, INVERTED, pairs.reshape(4))

    def fix_outside(self) -> None:
        low, high = self.boxes[:, :2], self.boxes[:, 2:]
        for box in self._where(np.any(high <= low, axis=1)):
            self.drop(box, NO_AREA)
        clipped = self.boxes.clip(0, 1)
        single = clipped.astype(np.float32)  # as it will be kept: a sliver may round to nothing
        empty = np.any(single[:, 2:] <= single[:, :2], axis=1)
        for box in self._where(empty):
            self.drop(box, WHOLLY_OUTSIDE)
        beyond = np.abs(clipped - self.boxes).max(axis=1, initial=0)
        for box in self._where(beyond > _ROUNDING):
            self.fix(box, OUTSIDE, clipped[box])
        self.boxes = self.boxes.clip(0, 1)

    def _where(self, mask: NDArray[np.bool_]) -> list[int]:
        return [int(box) for box in np.flatnonzero(mask & self.kept)]

    def _note(self, box: int, reason: str, detail: str, action: str) -> None:
        shown = detail or format_box(self.stored[box])
        self.problems.append(BoxProblem(reason, box, shown, action))
