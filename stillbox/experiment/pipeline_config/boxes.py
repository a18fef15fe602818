"""`AnchorGenerator`, `BoxCoder`, `Matcher` and `RegionSimilarityCalculator`."""

from stillbox.experiment.pipeline_config.section import choice
from stillbox.experiment.schema import (
    AnchorGrid,
    ArgmaxMatcher,
    BipartiteMatcher,
    FasterRcnnBoxCoder,
    FlexibleGridAnchors,
    GridAnchors,
    IoaSimilarity,
    IouSimilarity,
    MeanStddevBoxCoder,
    MultiscaleAnchors,
    NegSqDistSimilarity,
    SquareBoxCoder,
    SsdAnchors,
    ThresholdedIouSimilarity,
)
from stillbox.experiment.sections import part

read_anchors = choice(
    "anchor_generator_oneof",
    {
        "ssd_anchor_generator": part(
            SsdAnchors,
            height_strides="height_stride",
            width_strides="width_stride",
            height_offsets="height_offset",
            width_offsets="width_offset",
        ),
        "multiscale_anchor_generator": part(MultiscaleAnchors),
        "grid_anchor_generator": part(GridAnchors, base_height="height", base_width="width"),
        "flexible_grid_anchor_generator": part(
            FlexibleGridAnchors, grids=("anchor_grid", part(AnchorGrid, sizes="base_sizes"))
        ),
    },
)
"""Reads `anchor_generator`. An empty list means "none", not "the default"."""

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
