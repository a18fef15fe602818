"""From the description of anchors to the anchors of a detector; the registry of their kinds."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.boxes.anchors import (
    BoxSpec,
    Grid,
    multiscale_grids,
    pixel_grid_anchors,
    scale_ratio_specs,
)
from stillbox.boxes.default_boxes import DefaultBoxSpec, anchor_major_order, default_boxes
from stillbox.boxes.ssd_anchors import ssd_anchors, ssd_anchors_per_location
from stillbox.errors import UserError
from stillbox.experiment import schema

Shape = tuple[int, int]
Floats = NDArray[np.float32]


@lru_cache(maxsize=8)
def build_anchors(
    config: schema.Anchors, feature_shapes: tuple[Shape, ...], image_shape: Shape
) -> Floats:
    """Returns the anchors `[A, 4]`, normalised to the network input; nobody writes into them.

    Args:
        config: what stands at a location.
        feature_shapes: height and width of every feature map.
        image_shape: height and width of the network input, in pixels.
    """
    anchors = _KINDS[type(config)].build(config, feature_shapes, image_shape)
    anchors.setflags(write=False)
    return anchors


def anchors_per_location(config: schema.Anchors, maps: int) -> tuple[int, ...]:
    """Returns how many anchors stand at one location of each of the feature maps.

    Args:
        config: what stands at a location.
        maps: feature maps that the neck makes.

    Raises:
        UserError: the anchors are described for another number of maps.
    """
    if config.count_maps() != maps:
        raise UserError(
            f"anchors are described for {config.count_maps()} feature maps, the neck makes {maps}",
            where="model.anchors",
            fix=f"describe {maps}, or change model.neck",
        )
    return _KINDS[type(config)].per_location(config)


def prediction_order(
    config: schema.Anchors, feature_shapes: tuple[Shape, ...]
) -> NDArray[np.int64] | None:
    """Returns `[A]`: which prediction of the head belongs to each anchor; None: they stand alike.

    Heads predict location by location. Anchors whose description asks for another order want the
    predictions in it too.

    Args:
        config: what stands at a location.
        feature_shapes: height and width of every feature map.
    """
    if isinstance(config, schema.DefaultBoxes) and config.order == "anchor_major":
        return anchor_major_order(feature_shapes, _default_box_specs(config))
    return None


def _ssd(config: schema.SsdAnchors, feature_shapes: tuple[Shape, ...], image: Shape) -> Floats:
    return ssd_anchors(
        feature_shapes,
        image,
        min_scale=config.min_scale,
        max_scale=config.max_scale,
        scales=config.scales,
        aspect_ratios=config.aspect_ratios,
        interpolated_scale_aspect_ratio=config.interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer=config.reduce_boxes_in_lowest_layer,
        base_anchor_height=config.base_anchor_height,
        base_anchor_width=config.base_anchor_width,
        height_strides=config.height_strides,
        width_strides=config.width_strides,
        height_offsets=config.height_offsets,
        width_offsets=config.width_offsets,
    )


def _count_ssd(config: schema.SsdAnchors) -> tuple[int, ...]:
    return ssd_anchors_per_location(
        config.num_layers,
        aspect_ratios=config.aspect_ratios,
        interpolated_scale_aspect_ratio=config.interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer=config.reduce_boxes_in_lowest_layer,
    )


def _multiscale(
    config: schema.MultiscaleAnchors, feature_shapes: tuple[Shape, ...], image: Shape
) -> Floats:
    grids = multiscale_grids(
        image,
        min_level=config.min_level,
        max_level=config.max_level,
        anchor_scale=config.anchor_scale,
        aspect_ratios=config.aspect_ratios,
        scales_per_octave=config.scales_per_octave,
        scale_major=config.order == "scale_major",
    )
    return pixel_grid_anchors(feature_shapes, image, grids)


def _count_multiscale(config: schema.MultiscaleAnchors) -> tuple[int, ...]:
    return (len(config.aspect_ratios) * config.scales_per_octave,) * config.count_maps()


def _grid(config: schema.GridAnchors, feature_shapes: tuple[Shape, ...], image: Shape) -> Floats:
    grid = Grid(
        scale_ratio_specs(config.scales, config.aspect_ratios),
        (config.base_height, config.base_width),
        (config.height_stride, config.width_stride),
        (config.height_offset, config.width_offset),
    )
    return pixel_grid_anchors(feature_shapes, image, [grid])


def _count_grid(config: schema.GridAnchors) -> tuple[int, ...]:
    return (len(config.scales) * len(config.aspect_ratios),)


def _flexible_grid(
    config: schema.FlexibleGridAnchors, feature_shapes: tuple[Shape, ...], image: Shape
) -> Floats:
    grids = [
        Grid(
            tuple(map(BoxSpec, grid.sizes, grid.aspect_ratios)),
            (1.0, 1.0),
            (grid.height_stride, grid.width_stride),
            (grid.height_offset, grid.width_offset),
        )
        for grid in config.grids
    ]
    return pixel_grid_anchors(feature_shapes, image, grids)


def _count_flexible_grid(config: schema.FlexibleGridAnchors) -> tuple[int, ...]:
    return tuple(len(grid.sizes) for grid in config.grids)


def _default_boxes(
    config: schema.DefaultBoxes, feature_shapes: tuple[Shape, ...], image: Shape
) -> Floats:
    boxes = default_boxes(feature_shapes, image, _default_box_specs(config), clip=config.clip)
    order = prediction_order(config, feature_shapes)
    return boxes if order is None else boxes[order]


def _count_default_boxes(config: schema.DefaultBoxes) -> tuple[int, ...]:
    return tuple(spec.boxes for spec in _default_box_specs(config))


def _default_box_specs(config: schema.DefaultBoxes) -> list[DefaultBoxSpec]:
    return [
        DefaultBoxSpec(own.size, own.next_size, own.step, own.aspect_ratios) for own in config.maps
    ]


class _Kind(NamedTuple):
    build: Callable[[Any, tuple[Shape, ...], Shape], Floats]
    per_location: Callable[[Any], tuple[int, ...]]


# A new kind of anchors is one class in the schema, two functions above and one line here.
_KINDS: dict[type, _Kind] = {
    schema.SsdAnchors: _Kind(_ssd, _count_ssd),
    schema.MultiscaleAnchors: _Kind(_multiscale, _count_multiscale),
    schema.GridAnchors: _Kind(_grid, _count_grid),
    schema.FlexibleGridAnchors: _Kind(_flexible_grid, _count_flexible_grid),
    schema.DefaultBoxes: _Kind(_default_boxes, _count_default_boxes),
}
