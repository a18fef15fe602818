"""`BoxCoder` and `Matcher`."""

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    ArgmaxMatcher,
    BoxCoder,
    FasterRcnnBoxCoder,
    MeanStddevBoxCoder,
    SquareBoxCoder,
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


def read_matcher(section: Section, path: str) -> ArgmaxMatcher:
    """Reads `matcher`."""
    _, chosen = section.choose("matcher_oneof", ("argmax_matcher",))
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
