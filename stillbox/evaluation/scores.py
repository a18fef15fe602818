"""The metrics of an experiment, computed together and told under one set of names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stillbox.evaluation.coco import NO_TRUTH, SUMMARY_MEANINGS, CocoScores, score_coco
from stillbox.evaluation.original_names import (
    original_class_names,
    original_names,
)
from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.evaluation.voc import Interpolation, VocScores, score_voc
from stillbox.experiment.schema.evaluation import Metric

VOC_MEANINGS: dict[str, str] = {
    "VOC_mAP": "mean over classes, IoU at least .50",
    "VOC_weighted_mAP": "all classes in one list, IoU at least .50",
}
"""The keys that Pascal VOC's metrics add to `Scores.summary`, with their meaning."""

MEANINGS: dict[str, str] = SUMMARY_MEANINGS | VOC_MEANINGS
"""All keys that `Scores.summary` may have, in the order in which they are shown."""

_HEADLINE = ("AP", "AP50", "AP75", *VOC_MEANINGS)


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """What one class has in the ground truth and what was found of it."""

    truths: int
    """Boxes to find."""
    detections: int
    """Boxes that were found."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the metrics say about one set of detections."""

    coco: CocoScores | None = None
    """COCO's numbers, where they are asked for."""
    voc: VocScores | None = None
    """Pascal VOC's numbers, where either of them is asked for."""
    voc_keys: tuple[str, ...] = ()
    """Those of `VOC_MEANINGS` that are asked for."""

    @property
    def summary(self) -> dict[str, float | None]:
        """The numbers under the keys of `MEANINGS`; `None`: nothing to find."""
        summary = dict(self.coco.summary) if self.coco else {}
        if self.voc:
            both = {"VOC_mAP": self.voc.mean_ap, "VOC_weighted_mAP": self.voc.pooled_ap}
            summary |= {key: both[key] for key in self.voc_keys}
        return summary

    @property
    def first(self) -> CocoScores | VocScores:
        """The scores whose counts are shown: COCO's, or else VOC's."""
        first = self.coco or self.voc
        assert first is not None  # an experiment has at least one metric
        return first

    def text(self, key: str) -> str:
        """Returns a number of the summary to three places, or why there is none."""
        if self.coco and key in self.coco.summary:
            return self.coco.text(key)
        value = self.summary[key]
        return NO_TRUTH if value is None else f"{value:.3f}"

    def headline(self) -> str:
        """Returns the numbers that people look at first, in one line."""
        keys = [key for key in _HEADLINE if key in self.summary]
        return ", ".join(f"{key} {self.text(key)}" for key in keys)

    def classes(self) -> dict[str, ClassCounts]:
        """Returns the counts of every class of the label map by name."""
        return {
            name: ClassCounts(truths=one.truths, detections=one.detections)
            for name, one in self.first.per_class.items()
        }

    def class_numbers(self, name: str, *, all_metrics: bool = False) -> dict[str, float | None]:
        """Returns the numbers of one class.

        Args:
            name: of the class, as in `classes`.
            all_metrics: all twelve of COCO's instead of four.
        """
        numbers: dict[str, float | None] = {}
        if self.coco:
            keys = SUMMARY_MEANINGS if all_metrics else ("AP", "AP50", "AP75", "AR100")
            numbers |= {key: self.coco.per_class[name].numbers[key] for key in keys}
        if self.voc:
            numbers["VOC_AP"] = self.voc.per_class[name].ap
        return numbers

    def curves(self) -> dict[str, tuple[float, NDArray[np.float64]]]:
        """Returns AP and precision `[101]` at IoU .50 of every class with something to find."""
        if self.coco:
            pairs = {n: (one.ap50, one.precision50) for n, one in self.coco.per_class.items()}
        else:
            pairs = {n: (one.ap, one.precision) for n, one in self.first.per_class.items()}
        return {
            name: (ap, precision)
            for name, (ap, precision) in pairs.items()
            if ap is not None and precision is not None
        }

    def original_names(
        self, *, per_category: bool = False, all_metrics: bool = False
    ) -> dict[str, float | None]:
        """Returns the numbers under the names that they have in the original (fact sheet 5.3).

        Args:
            per_category: those of every class, too.
            all_metrics: all twelve of COCO's for every class.
        """
        named = original_names(self.summary)
        for name in self.classes() if per_category else ():
            numbers = self.class_numbers(name, all_metrics=all_metrics)
            named |= original_class_names(name, numbers, self.voc_keys)
        return named


def score(
    truths: Sequence[ImageTruth],
    results: Sequence[ImageResult],
    class_names: Mapping[int, str],
    *,
    metrics: Sequence[Metric] = ("coco",),
    interpolation: Interpolation = "all_points",
) -> Scores:
    """Computes the metrics.

    Args:
        truths: every image that counts. An image without a result has simply found nothing.
        results: at most one for each image, in any order.
        class_names: label map id -> name of every class that is scored.
        metrics: what is computed, at least one.
        interpolation: how Pascal VOC's metrics turn a curve into one number.

    Raises:
        UserError: see `score_coco` and `score_voc`.
    """
    keys = {"pascal_voc": "VOC_mAP", "weighted_pascal_voc": "VOC_weighted_mAP"}
    voc_keys = tuple(keys[metric] for metric in keys if metric in metrics)
    return Scores(
        coco=score_coco(truths, results, class_names) if "coco" in metrics else None,
        voc=score_voc(truths, results, class_names, interpolation=interpolation)
        if voc_keys
        else None,
        voc_keys=voc_keys,
    )
