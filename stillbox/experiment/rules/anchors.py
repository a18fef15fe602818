"""Rules about anchors."""

from collections.abc import Iterator

from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import (
    AnchorGrid,
    DefaultBoxes,
    DefaultBoxMap,
    GridAnchors,
    MultiscaleAnchors,
    SsdAnchors,
)
from stillbox.printing import count_text

_ANY_RATIO = "give at least one, such as 1.0"


@rule(AnchorGrid, SsdAnchors, MultiscaleAnchors, GridAnchors, DefaultBoxes)
def lists_are_not_empty(
    anchors: AnchorGrid | SsdAnchors | MultiscaleAnchors | GridAnchors | DefaultBoxes,
) -> Iterator[Broken]:
    """Scales and ratios give at least one anchor at each location."""
    if isinstance(anchors, AnchorGrid):
        if not anchors.sizes:
            yield Broken("sizes", "no sizes", "give at least one")
    elif isinstance(anchors, DefaultBoxes):
        if not anchors.maps:
            yield Broken("maps", "no maps", "give at least one")
    elif not anchors.aspect_ratios:
        yield Broken("aspect_ratios", "no aspect ratios", _ANY_RATIO)
    if isinstance(anchors, GridAnchors) and not anchors.scales:
        yield Broken("scales", "no scales", _ANY_RATIO)


@rule(SsdAnchors)
def one_map_has_a_scale(anchors: SsdAnchors) -> Iterator[Broken]:
    """A single feature map is no range of scales."""
    if anchors.num_layers == 1 and not anchors.scales:
        what = "one feature map has no room between min_scale and max_scale"
        yield Broken("scales", what, "give scales, one number")


@rule(SsdAnchors)
def ssd_lists_have_one_value_a_map(anchors: SsdAnchors) -> Iterator[Broken]:
    """A list has a value for each map, or none."""
    for name in ("scales", "height_strides", "width_strides", "height_offsets", "width_offsets"):
        values = getattr(anchors, name)
        if values and len(values) != anchors.num_layers:
            what = f"{name} has {count_text(len(values), 'value')} for "
            what += count_text(anchors.num_layers, "feature map")
            yield Broken(name, what, "one for each map, or none")


@rule(SsdAnchors)
def ssd_strides_come_in_pairs(anchors: SsdAnchors) -> Iterator[Broken]:
    """A grid has a vertical and a horizontal distance, or neither."""
    for name in ("strides", "offsets"):
        vertical = getattr(anchors, f"height_{name}")
        horizontal = getattr(anchors, f"width_{name}")
        if bool(vertical) != bool(horizontal):
            given, missing = ("height", "width") if vertical else ("width", "height")
            what = f"{given}_{name} without {missing}_{name}"
            yield Broken(f"{given}_{name}", what, "give both or neither")


@rule(AnchorGrid)
def grid_sizes_have_ratios(grid: AnchorGrid) -> Iterator[Broken]:
    """Sizes and aspect ratios of a grid are pairs."""
    if len(grid.sizes) != len(grid.aspect_ratios):
        yield Broken(
            "aspect_ratios",
            f"{count_text(len(grid.sizes), 'size')} and "
            f"{count_text(len(grid.aspect_ratios), 'aspect ratio')}",
            "give one aspect ratio for each size: an anchor has one of either",
        )


@rule(DefaultBoxMap)
def default_boxes_grow(own: DefaultBoxMap) -> Iterator[Broken]:
    """The large square of a map is larger than its small one."""
    if own.next_size <= own.size:
        what = f"next_size {own.next_size} is not above size {own.size}"
        yield Broken("next_size", what, "give the size of the next map")
