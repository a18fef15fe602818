"""Matchers and similarities; the families in `schema` say how they are called."""

from functools import partial

from stillbox.boxes.geometry import PairFunction, ioa, iou, neg_sq_dist, thresholded_iou
from stillbox.boxes.matchers import Match, argmax_match, bipartite_match
from stillbox.experiment import schema
from stillbox.experiment.variants import implements


@implements(schema.ArgmaxMatcher)
def _argmax(config: schema.ArgmaxMatcher) -> Match:
    return partial(argmax_match, **vars(config))


@implements(schema.BipartiteMatcher)
def _bipartite(config: schema.BipartiteMatcher) -> Match:
    return bipartite_match


@implements(schema.IouSimilarity)
def _iou(config: schema.IouSimilarity) -> PairFunction:
    return iou


@implements(schema.IoaSimilarity)
def _ioa(config: schema.IoaSimilarity) -> PairFunction:
    return ioa


@implements(schema.NegSqDistSimilarity)
def _neg_sq_dist(config: schema.NegSqDistSimilarity) -> PairFunction:
    return neg_sq_dist


@implements(schema.ThresholdedIouSimilarity)
def _thresholded_iou(config: schema.ThresholdedIouSimilarity) -> PairFunction:
    return partial(thresholded_iou, iou_threshold=config.iou_threshold)
