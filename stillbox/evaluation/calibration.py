"""Calibration: the scores of detections beside the share of correct ones.

Naeini et al. 2015, "Obtaining Well Calibrated Probabilities Using Bayesian Binning". hotcoco counts
the detections that COCO's metrics count, of all classes and scores, at an IoU of .50.
"""

from dataclasses import dataclass
from typing import Any

from stillbox.evaluation.results import FloatArray

_IOU = 0.5


@dataclass(frozen=True, kw_only=True)
class ScoreBin:
    """The detections with a score of a range."""

    low: float
    high: float
    detections: int
    score: float | None
    """Mean score; `None`: no detections."""
    correct: float | None
    """Share of correct detections; `None`: no detections."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Scores beside the share of correct detections."""

    error: float | None
    """The expected calibration error (ECE): the mean distance between score and share, over the
    detections of all bins; `None`: no detections, or scores that are no probabilities."""
    bins: tuple[ScoreBin, ...]
    """Ten ranges of scores, ascending; empty for scores that are no probabilities."""


def calibration_of(library: Any, scores: FloatArray) -> Calibration:  # noqa: ANN401
    """Returns the calibration of hotcoco's `COCOeval` after its matching.

    `scores` are of all its detections. Some detectors have scores beyond 0..1, such as logits.
    """
    if len(scores) and not (scores.min() >= 0 and scores.max() <= 1):
        return Calibration(error=None, bins=())
    counted = library.calibration(iou_threshold=_IOU)
    return Calibration(
        error=counted["ece"] if counted["num_detections"] else None,
        bins=tuple(map(_bin, counted["bins"])),
    )


def _bin(entry: dict[str, Any]) -> ScoreBin:
    known = entry["count"] > 0
    return ScoreBin(
        low=round(entry["bin_lower"], 6),
        high=round(entry["bin_upper"], 6),
        detections=entry["count"],
        score=entry["avg_confidence"] if known else None,
        correct=entry["avg_accuracy"] if known else None,
    )
