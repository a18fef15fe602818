"""Rules about anchors."""

from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken, OneStageRule
from stillbox.experiment.schema import (
    DefaultBoxes,
    FlexibleGridAnchors,
    GridAnchors,
    MultiscaleAnchors,
    OneStage,
    SsdAnchors,
)

_PATH = "model.anchors"
_ANY_RATIO = "give at least one, such as 1.0"


def anchors_have_shapes(model: OneStage) -> Iterator[Broken]:
    """Scales and ratios give at least one anchor a place."""
    anchors = model.anchors
    if isinstance(anchors, FlexibleGridAnchors):
        for index, grid in enumerate(anchors.grids):
            if not grid.sizes:
                yield Broken(f"{_PATH}.grids.{index}.sizes", "no sizes", "give at least one")
        return
    if isinstance(anchors, DefaultBoxes):
        if not anchors.maps:
            yield Broken(f"{_PATH}.maps", "no maps", "give at least one")
        return
    if isinstance(anchors, SsdAnchors | MultiscaleAnchors | GridAnchors) and (
        not anchors.aspect_ratios
    ):
        yield Broken(f"{_PATH}.aspect_ratios", "no aspect ratios", _ANY_RATIO)
    if isinstance(anchors, GridAnchors) and not anchors.scales:
        yield Broken(f"{_PATH}.scales", "no scales", _ANY_RATIO)


def ssd_scales_are_a_range(model: OneStage) -> Iterator[Broken]:
    """The scales of SSD's maps rise from the least to the greatest."""
    anchors = model.anchors
    # Explicit scales make the range of scales meaningless.
    if not isinstance(anchors, SsdAnchors) or anchors.scales:
        return
    if anchors.min_scale > anchors.max_scale:
        yield Broken(
            f"{_PATH}.min_scale",
            f"min_scale {anchors.min_scale} is above max_scale {anchors.max_scale}",
            "lower it, or raise max_scale",
        )
    if anchors.num_layers == 1:
        yield Broken(
            f"{_PATH}.scales",
            "one feature map has no room between min_scale and max_scale",
            "give scales, one number",
        )


def ssd_lists_have_one_value_a_map(model: OneStage) -> Iterator[Broken]:
    """What is given for each map is given for all of them."""
    anchors = model.anchors
    if not isinstance(anchors, SsdAnchors):
        return
    for name in ("scales", "height_strides", "width_strides", "height_offsets", "width_offsets"):
        values = getattr(anchors, name)
        if values and len(values) != anchors.num_layers:
            yield Broken(
                f"{_PATH}.{name}",
                f"{name} has {len(values)} values for {anchors.num_layers} feature maps",
                "one for each map, or none",
            )


def ssd_strides_come_in_pairs(model: OneStage) -> Iterator[Broken]:
    """A grid has a vertical and a horizontal distance, or neither."""
    anchors = model.anchors
    if not isinstance(anchors, SsdAnchors):
        return
    for name in ("strides", "offsets"):
        vertical = getattr(anchors, f"height_{name}")
        horizontal = getattr(anchors, f"width_{name}")
        if bool(vertical) != bool(horizontal):
            given, missing = ("height", "width") if vertical else ("width", "height")
            yield Broken(
                f"{_PATH}.{given}_{name}",
                f"{given}_{name} without {missing}_{name}",
                "give both or neither",
            )


def levels_are_ordered(model: OneStage) -> Iterator[Broken]:
    """There is a level between the finest and the coarsest."""
    anchors = model.anchors
    if isinstance(anchors, MultiscaleAnchors) and anchors.min_level > anchors.max_level:
        yield Broken(
            f"{_PATH}.min_level",
            f"min_level {anchors.min_level} is above max_level {anchors.max_level}",
            "lower it, or raise max_level",
        )


def grid_sizes_have_ratios(model: OneStage) -> Iterator[Broken]:
    """Sizes and aspect ratios of a grid are pairs."""
    anchors = model.anchors
    if not isinstance(anchors, FlexibleGridAnchors):
        return
    for index, grid in enumerate(anchors.grids):
        if len(grid.sizes) != len(grid.aspect_ratios):
            yield Broken(
                f"{_PATH}.grids.{index}.aspect_ratios",
                f"{len(grid.sizes)} sizes and {len(grid.aspect_ratios)} aspect ratios",
                "give one aspect ratio for each size: an anchor has one of either",
            )


def default_boxes_grow(model: OneStage) -> Iterator[Broken]:
    """The large square of a map is larger than its small one."""
    anchors = model.anchors
    if not isinstance(anchors, DefaultBoxes):
        return
    for index, own in enumerate(anchors.maps):
        if own.next_size <= own.size:
            yield Broken(
                f"{_PATH}.maps.{index}.next_size",
                f"next_size {own.next_size} is not above size {own.size}",
                "give the size of the next map",
            )


ANCHOR_RULES: tuple[OneStageRule, ...] = (
    anchors_have_shapes,
    ssd_scales_are_a_range,
    ssd_lists_have_one_value_a_map,
    ssd_strides_come_in_pairs,
    levels_are_ordered,
    grid_sizes_have_ratios,
    default_boxes_grow,
)
"""All of them."""
