"""`BoxCoder`, `Matcher` and `RegionSimilarityCalculator`."""

from stillbox.experiment.pipeline_config.section import choice
from stillbox.experiment.schema import (
    ArgmaxMatcher,
    BipartiteMatcher,
    FasterRcnnBoxCoder,
    IoaSimilarity,
    IouSimilarity,
    MeanStddevBoxCoder,
    NegSqDistSimilarity,
    SquareBoxCoder,
    ThresholdedIouSimilarity,
)
from stillbox.experiment.sections import part

read_box_coder = choice(
    "box_coder_oneof",
    {
        "faster_rcnn_box_coder": part(FasterRcnnBoxCoder),
        "mean_stddev_box_coder": part(MeanStddevBoxCoder),
        "square_box_coder": part(SquareBoxCoder),
    },
)
"""Reads `box_coder`."""

read_matcher = choice(
    "matcher_oneof",
    {"argmax_matcher": part(ArgmaxMatcher), "bipartite_matcher": part(BipartiteMatcher)},
)
"""Reads `matcher`."""

read_similarity = choice(
    "region_similarity",
    {
        "iou_similarity": part(IouSimilarity),
        "ioa_similarity": part(IoaSimilarity),
        "neg_sq_dist_similarity": part(NegSqDistSimilarity),
        "thresholded_iou_similarity": part(ThresholdedIouSimilarity),
    },
)
"""Reads `similarity_calculator`."""
