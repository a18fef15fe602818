"""Two detectors beside each other on the same images: COCO's numbers, their changes, and chance.

An interval is a bootstrap over images (hotcoco's `compare`): the set is drawn anew, with repeats,
and both detectors are scored on the same draw. An interval without 0 is a change that other images
of this kind would very likely show too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stillbox.evaluation.coco import SUMMARY_MEANINGS, CocoMatches, match_coco, score_coco
from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.printing import count_text, printable_line, size_text

SAMPLES = 500
"""Draws of the images for an interval."""
_CONFIDENCE = 0.95
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Change:
    """A number of both detectors, 0..1; `None`: no ground truth."""

    name: str
    first: float | None
    second: float | None
    low: float | None
    """The interval of the change, of 95 %; `None`: no ground truth."""
    high: float | None

    @property
    def change(self) -> float | None:
        """The second less the first."""
        if self.first is None or self.second is None:
            return None
        return self.second - self.first

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the interval excludes 0; otherwise empty."""
        if self.low is None or self.high is None:
            return ""
        return "better" * (self.low > 0) or "worse" * (self.high < 0)


@dataclass(frozen=True, kw_only=True)
class ImageChange:
    """The AP at IoU .50 of one image with objects."""

    image_id: str
    first: float
    second: float

    @property
    def change(self) -> float:
        """The second less the first."""
        return self.second - self.first


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """Speed and size of a detector."""

    source: str
    """Origin of the weights."""
    bytes: int
    """Size of the weights, or of the files of an export that its runtime reads."""
    gflop: float
    """Operations of the convolutions for one image, or one tile, in 10^9; a multiply-add is two."""
    milliseconds: float
    """Median from a decoded image to its detections, after compilation."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two detectors on the same images."""

    first: ModelFigures
    second: ModelFigures
    metrics: tuple[Change, ...]
    """COCO's twelve numbers, under the keys of `SUMMARY_MEANINGS`."""
    classes: tuple[Change, ...]
    """AP of each class with ground truth."""
    images: tuple[ImageChange, ...]
    """Images of which the AP differs, the greatest difference first."""
    image_count: int
    samples: int
    """Draws for an interval; 0: there are no intervals."""

    @property
    def ap(self) -> Change:
        """The mean over IoU .50 to .95."""
        return self.metrics[0]

    def is_worse(self, limit: float) -> bool:
        """Whether AP fell by more than `limit`, or there is none to compare."""
        return self.ap.change is None or self.ap.change < -limit

    def summary(self) -> str:
        """Returns the change of AP in one sentence."""
        ap = self.ap
        if ap.change is None:
            return "AP: no ground truth, so nothing is compared"
        moved = "does not change" if not ap.change else f"changes by {ap.change:+.4f}"
        if ap.low is None or ap.high is None:
            return f"AP {moved}"
        chance = "excludes 0" if ap.verdict else "includes 0: other images could say otherwise"
        return f"AP {moved}; the interval of 95 %, {ap.low:+.4f} to {ap.high:+.4f}, {chance}"

    def render(self) -> str:
        """Returns the models, the numbers and the images that differ most as text."""
        return "\n".join([*self._models(), "", *self._rows(), "", *self._images(), self.summary()])

    def _models(self) -> Iterator[str]:
        for place, model in (("first", self.first), ("second", self.second)):
            yield printable_line(f"{place:6} {model.source}: {figures_text(model)}")

    def _rows(self) -> Iterator[str]:
        width = max(12, *(len(printable_line(row.name)) for row in self.classes), 0)
        yield f"{'':{width}} {'first':>7} {'second':>7} {'change':>8}  interval of the change"
        for row in (*self.metrics, *self.classes):
            yield f"{printable_line(row.name):{width}} {_numbers(row)}".rstrip()

    def _images(self) -> Iterator[str]:
        differ = count_text(len(self.images), "image")
        yield f"AP50 differs in {differ} of {self.image_count:,}"
        for image in self.images[:_SHOWN]:
            yield printable_line(f"  {image.image_id}: {image.first:.3f} to {image.second:.3f}")

    def to_dict(self) -> dict[str, Any]:
        """Returns all numbers with their changes, as objects of JSON."""
        rows = {
            name: [asdict(row) | {"change": row.change} for row in getattr(self, name)]
            for name in ("metrics", "classes", "images")
        }
        return asdict(self) | rows


def _numbers(row: Change) -> str:
    if row.first is None or row.second is None:
        return f"{'-':>7} {'-':>7} {'-':>8}  no ground truth"
    chance = "" if row.low is None else f"{row.low:+.4f} to {row.high:+.4f}  {row.verdict}"
    return f"{row.first:7.4f} {row.second:7.4f} {row.change:+8.4f}  {chance}"


def figures_text(model: ModelFigures) -> str:
    """Returns size and speed of a detector in words."""
    return (
        f"{size_text(model.bytes)}, {model.gflop:.2f} GFLOP, {model.milliseconds:.1f} ms an image"
    )


def compare_results(
    truths: Sequence[ImageTruth],
    results: tuple[Sequence[ImageResult], Sequence[ImageResult]],
    class_names: Mapping[int, str],
    models: tuple[ModelFigures, ModelFigures],
    *,
    samples: int = SAMPLES,
) -> Comparison:
    """Compares the results of two detectors; for truths and classes see `score_coco`.

    Raises:
        UserError: see `number_images`.
    """
    first, second = (score_coco(truths, each, class_names) for each in results)
    both = [match_coco(truths, each, class_names) for each in results]
    intervals = _intervals(both, samples)
    metrics = [
        _change(key, first.summary[key], second.summary[key], intervals.get(key))
        for key in SUMMARY_MEANINGS
    ]
    classes = []
    for name, scored in first.per_class.items():
        ap = scored.numbers["AP"], second.per_class[name].numbers["AP"]
        if ap[0] is not None:
            only = scored.class_id
            alone = [match_coco(truths, each, class_names, only=only) for each in results]
            classes.append(_change(name, *ap, _intervals(alone, samples).get("AP")))
    return Comparison(
        first=models[0],
        second=models[1],
        metrics=tuple(metrics),
        classes=tuple(classes),
        images=tuple(_image_changes(truths, *both)),
        image_count=len(truths),
        samples=samples,
    )


_Interval = tuple[float, float]


def _change(
    name: str, first: float | None, second: float | None, interval: _Interval | None
) -> Change:
    # The library has an interval of 0 to 0 where there is no ground truth.
    low, high = interval if interval and first is not None else (None, None)
    return Change(name=name, first=first, second=second, low=low, high=high)


def _intervals(matches: Sequence[CocoMatches], samples: int) -> dict[str, _Interval]:
    """Returns the interval of the change of each of COCO's numbers; none without draws."""
    # Imported here, as in `match_coco`.
    import hotcoco

    first, second = matches
    compared = hotcoco.compare(
        first.library, second.library, n_bootstrap=samples, confidence=_CONFIDENCE
    )
    intervals = compared["ci"] or {}
    return {key: (interval["lower"], interval["upper"]) for key, interval in intervals.items()}


def _image_changes(
    truths: Sequence[ImageTruth], first: CocoMatches, second: CocoMatches
) -> list[ImageChange]:
    """Returns the images with objects of which the AP differs, the greatest difference first."""
    aps = [match.library.image_diagnostics()["img_summary"] for match in (first, second)]
    changes = []
    for truth in truths:
        number = first.numbers[truth.image_id]
        # An image without objects has no AP; the library has none, or 0.
        if not truth.is_crowd.all():
            before, after = (float(of_image[number]["ap"]) for of_image in aps)
            change = ImageChange(image_id=truth.image_id, first=before, second=after)
            changes += [change] * (before != after)
    return sorted(changes, key=lambda each: -abs(each.change))
