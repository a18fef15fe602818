"""Sizes and aspect ratios of objects, and how many of each are found."""

from dataclasses import dataclass

import numpy as np

from stillbox.evaluation.confidence import Matched
from stillbox.evaluation.flat import Bools, FlatSet, Floats, Ints

_INF = float("inf")
SIZES = {
    "small": (0.0, 32.0, "area below 32 x 32 pixels"),
    "medium": (32.0, 96.0, "area to 96 x 96 pixels"),
    "large": (96.0, _INF, "area above 96 x 96 pixels"),
}
"""COCO's sizes: sides of a square of least and greatest area, and their meaning."""
RATIOS = {
    "tall": (0.0, 0.75, "width below .75 of the height"),
    "square": (0.75, 4 / 3, "width .75 to 1.33 of the height"),
    "wide": (4 / 3, _INF, "width above 1.33 of the height"),
}
"""Least and greatest width divided by height."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The objects and detections of a range of sizes or ratios."""

    about: str
    truths: int
    correct: int
    """Objects that are found."""
    found: int
    """Detections: the correct ones of these objects, and wrong ones whose own box is in the range,
    as COCO counts them."""

    @property
    def numbers(self) -> dict[str, float | None]:
        """Recall and precision; `None` without objects."""
        return {
            "precision": self.correct / self.found if self.found and self.truths else None,
            "recall": self.correct / self.truths if self.truths else None,
        }


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Objects by a measure."""

    edges: Floats
    """`[B + 1]`, ascending by a constant factor; the first and last bin hold the rest."""
    correct: Ints
    """`[B]`, objects that are found."""
    missed: Ints
    """`[B]`, objects that are not."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Sizes and aspect ratios at one threshold of the score."""

    sizes: dict[str, Group]
    ratios: dict[str, Group]
    side: Histogram
    """By the square root of the area, in pixels."""
    ratio: Histogram
    """By width divided by height."""


def shapes(flat: FlatSet, matched: Matched) -> Shapes:
    """Returns the statistics; the caller chooses the detections, as by `FlatSet.above`."""
    found = np.zeros(len(flat.truth_class), np.bool_)
    found[matched.truth[matched.correct]] = True
    wanted, counts = ~flat.truth_ignored, ~matched.ignored
    size = np.sqrt(np.maximum(flat.boxes[:, 2:] - flat.boxes[:, :2], 0).prod(axis=1))[counts]
    truth_size = np.sqrt(np.maximum(flat.truth_area, 0))[wanted]
    ratio, truth_ratio = _ratio(flat.boxes)[counts], _ratio(flat.truth_boxes)[wanted]
    wrong, found = ~matched.correct[counts], found[wanted]

    def group(truth: Floats, own: Floats, low: float, high: float, about: str) -> Group:
        inside, own_inside = (truth >= low) & (truth < high), (own >= low) & (own < high)
        return Group(
            about=about,
            truths=int(inside.sum()),
            correct=int((inside & found).sum()),
            found=int((inside & found).sum() + (own_inside & wrong).sum()),
        )

    return Shapes(
        sizes={name: group(truth_size, size, *limits) for name, limits in SIZES.items()},
        ratios={name: group(truth_ratio, ratio, *limits) for name, limits in RATIOS.items()},
        side=_histogram(truth_size, found, np.exp2(np.arange(4, 23) / 2)),
        ratio=_histogram(truth_ratio, found, np.exp2(np.arange(-6.5, 7) / 2)),
    )


def _ratio(boxes: Floats) -> Floats:
    """Returns width divided by height, `[N]`; NaN for boxes without area."""
    height, width = (np.maximum(boxes[:, 2:] - boxes[:, :2], 0)).T
    return np.divide(
        width, height, out=np.full(len(boxes), np.nan), where=(width > 0) & (height > 0)
    )


def _histogram(values: Floats, found: Bools, edges: Floats) -> Histogram:
    """Returns the histogram without empty bins at its ends."""
    known = np.isfinite(values)
    place = np.clip(np.searchsorted(edges, values[known], side="right") - 1, 0, len(edges) - 2)
    counts = [
        np.bincount(place[found[known] == which], minlength=len(edges) - 1)
        for which in (True, False)
    ]
    used = np.flatnonzero(counts[0] + counts[1])
    # One edge more than bins; none of either without objects.
    first, last = (used[0], used[-1] + 1) if len(used) else (0, 0)
    return Histogram(
        edges=edges[first : last + 1] if last else edges[:0],
        correct=counts[0][first:last],
        missed=counts[1][first:last],
    )
