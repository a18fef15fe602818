"""`AnchorGenerator`, `BoxCoder`, `Matcher` and `RegionSimilarityCalculator`."""

from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.schema import (
    AnchorGrid,
    Anchors,
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
from stillbox.experiment.sections import Reader, part

_read_multiscale = part(MultiscaleAnchors)
_read_grid = part(GridAnchors, base_height="height", base_width="width")
_read_flexible = part(
    FlexibleGridAnchors, grids=("anchor_grid", part(AnchorGrid, sizes="base_sizes"))
)

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
        "multiscale_anchor_generator": _read_multiscale,
        "grid_anchor_generator": _read_grid,
        "flexible_grid_anchor_generator": _read_flexible,
    },
)
"""Reads `anchor_generator`. An empty list means "none", not "the default"."""


def _in_pixels(reader: Reader) -> Reader:
    """Returns a reader of anchors that are not normalised."""

    def read(section: MessageSection, path: str) -> Anchors:
        name = "normalize_coordinates"
        if section.value(name):
            section.refuse(name, "anchors of proposals are in pixels", f"write {name}: false")
        anchors: Anchors = reader(section, path)
        return anchors

    return read


read_pixel_anchors = choice(
    "anchor_generator_oneof",
    {
        "grid_anchor_generator": _read_grid,
        "multiscale_anchor_generator": _in_pixels(_read_multiscale),
        "flexible_grid_anchor_generator": _in_pixels(_read_flexible),
    },
)
"""Reads `first_stage_anchor_generator`."""

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
