"""`BoxCoder`, `Matcher` and `RegionSimilarityCalculator`."""

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    ArgmaxMatcher,
    BipartiteMatcher,
    BoxCoder,
    FasterRcnnBoxCoder,
    IoaSimilarity,
    IouSimilarity,
    Matcher,
    MeanStddevBoxCoder,
    NegSqDistSimilarity,
    Similarity,
    SquareBoxCoder,
    ThresholdedIouSimilarity,
)


def read_box_coder(section: Section, path: str) -> BoxCoder:
    """Reads `box_coder`."""
    name, chosen = section.choose(
        "box_coder_oneof", ("faster_rcnn_box_coder", "mean_stddev_box_coder", "square_box_coder")
    )
    if name == "mean_stddev_box_coder":
        return MeanStddevBoxCoder(**chosen.fill(path, "stddev"))
    if name == "square_box_coder":
        return SquareBoxCoder(**chosen.fill(path, "y_scale", "x_scale", "length_scale"))
    return FasterRcnnBoxCoder(
        **chosen.fill(path, "y_scale", "x_scale", "height_scale", "width_scale")
    )


def read_matcher(section: Section, path: str) -> Matcher:
    """Reads `matcher`."""
    name, chosen = section.choose("matcher_oneof", ("argmax_matcher", "bipartite_matcher"))
    if name == "bipartite_matcher":
        return BipartiteMatcher()
    return ArgmaxMatcher(
        **chosen.fill(
            path,
            "matched_threshold",
            "unmatched_threshold",
            "ignore_thresholds",
            "negatives_lower_than_unmatched",
            "force_match_for_each_row",
        )
    )


def read_similarity(section: Section, path: str) -> Similarity:
    """Reads `similarity_calculator`."""
    name, chosen = section.choose("region_similarity", tuple(_SIMILARITIES))
    if name == "thresholded_iou_similarity":
        return ThresholdedIouSimilarity(**chosen.fill(path, "iou_threshold"))
    return _SIMILARITIES[name]()


_SIMILARITIES: dict[str, type[Similarity]] = {
    "iou_similarity": IouSimilarity,
    "ioa_similarity": IoaSimilarity,
    "neg_sq_dist_similarity": NegSqDistSimilarity,
    "thresholded_iou_similarity": ThresholdedIouSimilarity,
}
