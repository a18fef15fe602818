"""Matchers, which assign ground-truth boxes to anchors, and what they compare.

The original has them in `object_detection/matchers` and `core/region_similarity_calculator.py`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from stillbox.experiment.schema.ranges import Count, Fraction, NonNegative, Real
from stillbox.experiment.variants import RegisteredConfig, implements

if TYPE_CHECKING:
    from stillbox.boxes.geometry import PairFunction
    from stillbox.boxes.matchers import Match


class Matcher(RegisteredConfig):
    """Assigns ground-truth boxes to anchors.

    Called as `(config)`; returns a function from `boxes.matchers.Rows` to matches `[A]`.
    """


@dataclass(frozen=True, kw_only=True)
class ArgmaxMatcher(Matcher, kind="argmax"):
    """Assigns each anchor its most similar ground-truth box, or none (`argmax_matcher.py`)."""

    matched_threshold: Real = 0.5
    """At or above this similarity an anchor is matched."""
    unmatched_threshold: Real = 0.5
    """Below this similarity an anchor is background; in between it is ignored."""
    ignore_thresholds: bool = False
    """Match every anchor, whatever its similarity."""
    negatives_lower_than_unmatched: bool = True
    """False swaps background and ignored."""
    force_match_for_each_row: bool = False
    """Give every ground truth box its best anchor, even below the threshold."""
    keep_best_of_each_row: bool = False
    """Give the best anchors of every ground truth box their own most similar box, even below the
    threshold: torchvision's `allow_low_quality_matches`."""


@implements(ArgmaxMatcher)
def _argmax(config: ArgmaxMatcher) -> "Match":
    from stillbox.boxes.matchers import argmax_match

    return partial(
        argmax_match,
        matched_threshold=config.matched_threshold,
        unmatched_threshold=config.unmatched_threshold,
        ignore_thresholds=config.ignore_thresholds,
        negatives_lower_than_unmatched=config.negatives_lower_than_unmatched,
        force_match_for_each_row=config.force_match_for_each_row,
        keep_best_of_each_row=config.keep_best_of_each_row,
    )


@dataclass(frozen=True, kw_only=True)
class BipartiteMatcher(Matcher, kind="bipartite"):
    """Every ground truth box has one anchor of its own, the most similar pairs first."""


@implements(BipartiteMatcher)
def _bipartite(config: BipartiteMatcher) -> "Match":
    from stillbox.boxes.matchers import bipartite_match

    return bipartite_match


@dataclass(frozen=True, kw_only=True)
class AtssMatcher(Matcher, kind="atss"):
    """Assigns anchors by a threshold that follows from each box's candidates (arXiv:1912.02424).

    Candidates are the anchors with the centres nearest to the box's; the threshold is mean plus
    standard deviation of their similarities. One square anchor at each location is enough. A box
    may get no anchor.
    """

    candidates: Count = 9
    """Candidates of each feature map."""


@implements(AtssMatcher)
def _atss(config: AtssMatcher) -> "Match":
    from stillbox.boxes.adaptive_matching import atss_match

    return partial(atss_match, candidates=config.candidates)


@dataclass(frozen=True, kw_only=True)
class TaskAlignedMatcher(Matcher, kind="task_aligned"):
    """Assigns the anchors that already predict a box best (arXiv:2108.07755).

    Fit is `s^alpha u^beta`, of the score s of the box's class and the IoU u of the predicted box.
    Only anchors with their centre in the box are assigned. It needs the loss `quality`.
    """

    alpha: NonNegative = 1.0
    """Exponent of the score."""
    beta: NonNegative = 6.0
    """Exponent of the IoU."""
    candidates: Count = 13
    """Anchors of a box at most, on all feature maps together."""


@implements(TaskAlignedMatcher)
def _task_aligned(config: TaskAlignedMatcher) -> "Match":
    from stillbox.boxes.adaptive_matching import task_aligned_match

    return partial(
        task_aligned_match, alpha=config.alpha, beta=config.beta, candidates=config.candidates
    )


class Similarity(RegisteredConfig):
    """What a matcher compares anchors and ground-truth boxes by.

    Called as `(config)`; returns a function of boxes `[..., 4]` that broadcasts.
    """


@dataclass(frozen=True, kw_only=True)
class IouSimilarity(Similarity, kind="iou"):
    """Intersection over union."""


@implements(IouSimilarity)
def _iou(config: IouSimilarity) -> "PairFunction":
    from stillbox.boxes.geometry import iou

    return iou


@dataclass(frozen=True, kw_only=True)
class IoaSimilarity(Similarity, kind="ioa"):
    """The part of the anchor that the ground truth box covers."""


@implements(IoaSimilarity)
def _ioa(config: IoaSimilarity) -> "PairFunction":
    from stillbox.boxes.geometry import ioa

    return ioa


@dataclass(frozen=True, kw_only=True)
class NegSqDistSimilarity(Similarity, kind="neg_sq_dist"):
    """Minus the sum of the squared distances of the four edges; 0 is the greatest."""


@implements(NegSqDistSimilarity)
def _neg_sq_dist(config: NegSqDistSimilarity) -> "PairFunction":
    from stillbox.boxes.geometry import neg_sq_dist

    return neg_sq_dist


@dataclass(frozen=True, kw_only=True)
class ThresholdedIouSimilarity(Similarity, kind="thresholded_iou"):
    """1 where the IoU is above a threshold, otherwise 0: all that overlap enough are alike."""

    iou_threshold: Fraction = 0.5
    """Only an IoU above this counts."""


@implements(ThresholdedIouSimilarity)
def _thresholded_iou(config: ThresholdedIouSimilarity) -> "PairFunction":
    from stillbox.boxes.geometry import thresholded_iou

    return partial(thresholded_iou, iou_threshold=config.iou_threshold)
