"""`AnchorGenerator`."""

from collections.abc import Callable
from typing import Any

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    AnchorGrid,
    Anchors,
    FlexibleGridAnchors,
    GridAnchors,
    MultiscaleAnchors,
    SsdAnchors,
)


def read_anchors(section: Section, path: str) -> Anchors:
    """Reads `anchor_generator`."""
    name, chosen = section.choose("anchor_generator_oneof", tuple(_READERS))
    return _READERS[name](chosen, path)


def _read_ssd(section: Section, path: str) -> SsdAnchors:
    lists = {
        "height_strides": "height_stride",
        "width_strides": "width_stride",
        "height_offsets": "height_offset",
        "width_offsets": "width_offset",
    }
    return SsdAnchors(
        **_lists(section, path, "scales", "aspect_ratios", **lists),
        **section.fill(
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


def _read_multiscale(section: Section, path: str) -> MultiscaleAnchors:
    return MultiscaleAnchors(
        **_lists(section, path, "aspect_ratios"),
        **section.fill(path, "min_level", "max_level", "anchor_scale", "scales_per_octave"),
    )


def _read_grid(section: Section, path: str) -> GridAnchors:
    return GridAnchors(
        **_lists(section, path, "scales", "aspect_ratios"),
        **section.fill(path, *_STRIDES_AND_OFFSETS, base_height="height", base_width="width"),
    )


def _read_flexible_grid(section: Section, path: str) -> FlexibleGridAnchors:
    grids = enumerate(section.children("anchor_grid"))
    return FlexibleGridAnchors(
        grids=tuple(
            AnchorGrid(
                **_lists(grid, f"{path}.grids.{index}", "aspect_ratios", sizes="base_sizes"),
                **grid.fill(f"{path}.grids.{index}", *_STRIDES_AND_OFFSETS),
            )
            for index, grid in grids
        )
    )


def _lists(section: Section, path: str, *names: str, **renamed: str) -> dict[str, Any]:
    """Returns repeated scalars as keyword arguments; `ours="theirs"` where the names differ."""
    # An empty list is passed on as such: it means "none", not "the default".
    pairs = {name: name for name in names} | renamed
    return {ours: section.values(theirs, f"{path}.{ours}") for ours, theirs in pairs.items()}


_STRIDES_AND_OFFSETS = ("height_stride", "width_stride", "height_offset", "width_offset")
_READERS: dict[str, Callable[[Section, str], Anchors]] = {
    "ssd_anchor_generator": _read_ssd,
    "multiscale_anchor_generator": _read_multiscale,
    "grid_anchor_generator": _read_grid,
    "flexible_grid_anchor_generator": _read_flexible_grid,
}
