"""Anchors by their schema classes; the families in `schema` say how they are called."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from stillbox.boxes.anchors import (
    BoxSpec,
    DefaultBoxSpec,
    Grid,
    anchor_major_order,
    anchors_in_pixels,
    default_boxes,
    multiscale_grids,
    pixel_grid_anchors,
    scale_ratio_specs,
    ssd_anchors,
    ssd_anchors_per_location,
)
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements

Shape = tuple[int, int]
AnchorBoxes = Float32[np.ndarray, "A 4"]
Order = Int64[np.ndarray, "A"] | None
# RetinaNet has 442,368 at 1536 x 1536.
_MOST_ANCHORS = 8_000_000


class AnchorGenerator(NamedTuple):
    """The functions of one kind of anchors."""

    per_location: tuple[int, ...]
    """Anchors at one location of each feature map."""
    boxes: Callable[[tuple[Shape, ...], Shape], AnchorBoxes]
    """From the shapes of the feature maps and of the network input to anchors."""
    order: Callable[[tuple[Shape, ...]], Order] = lambda feature_shapes: None
    """From the shapes of the feature maps to `prediction_order`."""
    grids: Callable[[Shape], Sequence[Grid]] | None = None
    """From the shape of the network input to a grid for each map, for anchors that are grids."""


@lru_cache(maxsize=8)
def build_anchors(
    config: schema.Anchors, feature_shapes: tuple[Shape, ...], image_shape: Shape
) -> AnchorBoxes:
    """Returns the anchors, normalised to the network input, read-only.

    Shapes are heights and widths: of every feature map, and of the network input in pixels.
    """
    anchors = _generator(config).boxes(feature_shapes, image_shape)
    anchors.setflags(write=False)
    return anchors


@lru_cache(maxsize=8)
def build_pixel_anchors(
    config: schema.Anchors, feature_shapes: tuple[Shape, ...], image_shape: Shape
) -> AnchorBoxes:
    """Returns the anchors in pixels of the network input, read-only.

    As the original's detectors of two stages have them: rounding decides which of two anchors with
    equal overlaps a box is assigned to.
    """
    generator = _generator(config)
    if generator.grids is None:
        sides = np.tile(np.asarray(image_shape, np.float32), 2)
        anchors = generator.boxes(feature_shapes, image_shape) * sides
    else:
        anchors = anchors_in_pixels(feature_shapes, generator.grids(image_shape))
    anchors.setflags(write=False)
    return anchors


def anchors_per_location(config: schema.Anchors, maps: int) -> tuple[int, ...]:
    """Returns the number of anchors at one location of each of `maps` feature maps.

    Raises:
        UserError: the anchors are configured for another number of maps.
    """
    if config.count_maps() != maps:
        raise UserError(
            f"anchors are described for {config.count_maps()} feature maps, the neck makes {maps}",
            where="model.anchors",
            fix=f"describe {maps}, or change model.neck",
        )
    return _generator(config).per_location


def check_number(config: schema.Anchors, feature_shapes: tuple[Shape, ...], *, where: str) -> None:
    """Refuses anchors that fill the memory before anything else does; `where` is their path.

    Raises:
        UserError: the feature maps have too many.
    """
    locations = (rows * columns for rows, columns in feature_shapes)
    per_location = anchors_per_location(config, len(feature_shapes))
    number = sum(one * own for one, own in zip(locations, per_location, strict=True))
    if number > _MOST_ANCHORS:
        raise UserError(
            f"an image has {number:,} anchors, and at most {_MOST_ANCHORS:,} are possible",
            where=where,
            fix="take a smaller network input (model.resizer), coarser maps, or fewer scales and "
            "aspect ratios",
        )


def prediction_order(config: schema.Anchors, feature_shapes: tuple[Shape, ...]) -> Order:
    """Returns the index of the head's prediction for each anchor; None: the same order.

    Heads predict location by location; the anchors may have another order.
    """
    return _generator(config).order(feature_shapes)


def _generator(config: schema.Anchors) -> AnchorGenerator:
    generator: AnchorGenerator = implementation_of(config)(config)
    return generator


@implements(schema.SsdAnchors)
def _ssd(config: schema.SsdAnchors) -> AnchorGenerator:
    # The arguments of `ssd_anchors` are the fields but `num_layers`.
    fields = {name: value for name, value in vars(config).items() if name != "num_layers"}
    per_location = ssd_anchors_per_location(
        config.num_layers,
        aspect_ratios=config.aspect_ratios,
        interpolated_scale_aspect_ratio=config.interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer=config.reduce_boxes_in_lowest_layer,
    )
    return AnchorGenerator(per_location, partial(ssd_anchors, **fields))


@implements(schema.MultiscaleAnchors)
def _multiscale(config: schema.MultiscaleAnchors) -> AnchorGenerator:
    def grids(image_shape: Shape) -> Sequence[Grid]:
        return multiscale_grids(
            image_shape,
            min_level=config.min_level,
            max_level=config.max_level,
            anchor_scale=config.anchor_scale,
            aspect_ratios=config.aspect_ratios,
            scales_per_octave=config.scales_per_octave,
            scale_major=config.order == "scale_major",
        )

    count = len(config.aspect_ratios) * config.scales_per_octave
    return _on_grids((count,) * config.count_maps(), grids)


@implements(schema.GridAnchors)
def _grid(config: schema.GridAnchors) -> AnchorGenerator:
    grid = Grid(
        scale_ratio_specs(config.scales, config.aspect_ratios),
        (config.base_height, config.base_width),
        (config.height_stride, config.width_stride),
        (config.height_offset, config.width_offset),
    )
    return _on_grids((len(config.scales) * len(config.aspect_ratios),), lambda image_shape: [grid])


@implements(schema.FlexibleGridAnchors)
def _flexible_grid(config: schema.FlexibleGridAnchors) -> AnchorGenerator:
    grids = [
        Grid(
            tuple(map(BoxSpec, grid.sizes, grid.aspect_ratios)),
            (1.0, 1.0),
            (grid.height_stride, grid.width_stride),
            (grid.height_offset, grid.width_offset),
        )
        for grid in config.grids
    ]
    return _on_grids(tuple(len(grid.sizes) for grid in config.grids), lambda image_shape: grids)


def _on_grids(
    per_location: tuple[int, ...], grids: Callable[[Shape], Sequence[Grid]]
) -> AnchorGenerator:
    def boxes(feature_shapes: tuple[Shape, ...], image_shape: Shape) -> AnchorBoxes:
        return pixel_grid_anchors(feature_shapes, image_shape, grids(image_shape))

    return AnchorGenerator(per_location, boxes, grids=grids)


@implements(schema.DefaultBoxes)
def _default_boxes(config: schema.DefaultBoxes) -> AnchorGenerator:
    specs = [
        DefaultBoxSpec(own.size, own.next_size, own.step, own.aspect_ratios) for own in config.maps
    ]

    def order(feature_shapes: tuple[Shape, ...]) -> Order:
        if config.order == "anchor_major":
            return anchor_major_order(feature_shapes, specs)
        return None

    def boxes(feature_shapes: tuple[Shape, ...], image_shape: Shape) -> AnchorBoxes:
        cell_major = default_boxes(feature_shapes, image_shape, specs, clip=config.clip)
        own = order(feature_shapes)
        return cell_major if own is None else cell_major[own]

    return AnchorGenerator(tuple(spec.boxes for spec in specs), boxes, order)
