"""`AnchorGenerator`."""

from stillbox.experiment.pipeline_config.section import choice
from stillbox.experiment.schema import (
    AnchorGrid,
    FlexibleGridAnchors,
    GridAnchors,
    MultiscaleAnchors,
    SsdAnchors,
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
