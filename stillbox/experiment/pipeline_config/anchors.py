"""`AnchorGenerator`."""

from typing import Any

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    SsdAnchors,
)


def read_anchors(section: Section, path: str) -> SsdAnchors:
    """Reads `anchor_generator`."""
    _, chosen = section.choose("anchor_generator_oneof", ("ssd_anchor_generator",))
    lists = {
        "scales": "scales",
        "aspect_ratios": "aspect_ratios",
        "height_strides": "height_stride",
        "width_strides": "width_stride",
        "height_offsets": "height_offset",
        "width_offsets": "width_offset",
    }
    # An empty list is passed on as such: here it means "none", not "the default".
    given: dict[str, Any] = {
        ours: chosen.values(theirs, f"{path}.{ours}") for ours, theirs in lists.items()
    }
    return SsdAnchors(
        **given,
        **chosen.fill(
            path,
            "num_layers",
            "min_scale",
            "max_scale",
            "interpolated_scale_aspect_ratio",
            "reduce_boxes_in_lowest_layer",
            "base_anchor_height",
            "base_anchor_width",
        ),
    )
