"""Anchors, the boxes that predictions are relative to, and how to compute them.

The original has them in `object_detection/anchor_generators`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from stillbox.experiment.schema.ranges import (
    AtLeastOne,
    Count,
    NonNegative,
    Offset,
    Positive,
    Range,
    Ratios,
    Side,
)
from stillbox.experiment.variants import RegisteredConfig, implements

if TYPE_CHECKING:
    from stillbox.boxes.anchors import AnchorBoxes, AnchorGenerator, Grid, Order, Shape


class Anchors(RegisteredConfig):
    """The boxes that predictions are relative to.

    Called as `(config)`; returns a `boxes.anchors.AnchorGenerator`.
    """

    def count_maps(self) -> int:
        """Returns the number of feature maps that carry anchors."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SsdAnchors(Anchors, kind="ssd"):
    """SSD's anchors: one scale a feature map, several aspect ratios."""

    num_layers: Count = 6
    """Feature maps that carry anchors."""
    min_scale: Positive = 0.2
    """Scale of the finest map, as a share of the image's shorter side."""
    max_scale: Positive = 0.95
    """Scale of the coarsest map."""
    scales: tuple[Positive, ...] = ()
    """Explicit scales, one a map; when given, `min_scale` and `max_scale` are not used."""
    aspect_ratios: Annotated[tuple[Positive, ...], Ratios] = (1.0, 2.0, 3.0, 0.5, 1.0 / 3)
    """Width over height, in the order of the head's channels."""
    interpolated_scale_aspect_ratio: NonNegative = 1.0
    """Aspect ratio of one further anchor between two scales; 0 leaves it out."""
    reduce_boxes_in_lowest_layer: bool = True
    """Three anchors instead of six on the finest map."""
    base_anchor_height: Positive = 1.0
    """Height that scale 1 stands for."""
    base_anchor_width: Positive = 1.0
    """Width that scale 1 stands for."""
    height_strides: tuple[Side, ...] = ()
    """Vertical distance of the centres in pixels, one a map; empty: image over map."""
    width_strides: tuple[Side, ...] = ()
    """Horizontal distance of the centres in pixels."""
    height_offsets: tuple[Offset, ...] = ()
    """First centre from the top in pixels, one a map; empty: half a stride."""
    width_offsets: tuple[Offset, ...] = ()
    """First centre from the left in pixels."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return self.num_layers


@implements(SsdAnchors)
def _ssd(config: SsdAnchors) -> "AnchorGenerator":
    from stillbox.boxes.anchors import AnchorGenerator, ssd_anchors, ssd_anchors_per_location

    per_location = ssd_anchors_per_location(
        config.num_layers,
        aspect_ratios=config.aspect_ratios,
        interpolated_scale_aspect_ratio=config.interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer=config.reduce_boxes_in_lowest_layer,
    )
    boxes = partial(
        ssd_anchors,
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
    return AnchorGenerator(per_location, boxes)


@dataclass(frozen=True, kw_only=True)
class MultiscaleAnchors(Anchors, kind="multiscale"):
    """RetinaNet's anchors: the same boxes on every level, twice as large on the next one."""

    min_level: Annotated[int, Range(0, 15)] = 3
    """Level of the finest map that carries anchors; level l has a stride of 2^l pixels."""
    max_level: Annotated[int, Range(0, 15)] = 7
    """Level of the coarsest map."""
    anchor_scale: Positive = 4.0
    """Side of the smallest square anchor of a level, in strides."""
    aspect_ratios: Annotated[tuple[Positive, ...], Ratios] = (1.0, 2.0, 0.5)
    """Width over height, in the order of the head's channels."""
    scales_per_octave: Count = 2
    """Anchor sizes of each aspect ratio on a level, at equal ratios up to the next level's."""
    order: Literal["ratio_major", "scale_major"] = "ratio_major"
    """Order at a location, which the head's channels follow: the sizes of one aspect ratio
    together, or the aspect ratios of one size."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return self.max_level - self.min_level + 1


@implements(MultiscaleAnchors)
def _multiscale(config: MultiscaleAnchors) -> "AnchorGenerator":
    from stillbox.boxes.anchors import multiscale_grids

    def grids(image_shape: "Shape") -> "Sequence[Grid]":
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


def _on_grids(
    per_location: tuple[int, ...], grids: "Callable[[Shape], Sequence[Grid]]"
) -> "AnchorGenerator":
    from stillbox.boxes.anchors import AnchorGenerator, pixel_grid_anchors

    def boxes(feature_shapes: "tuple[Shape, ...]", image_shape: "Shape") -> "AnchorBoxes":
        return pixel_grid_anchors(feature_shapes, image_shape, grids(image_shape))

    return AnchorGenerator(per_location, boxes, grids=grids)


@dataclass(frozen=True, kw_only=True)
class GridAnchors(Anchors, kind="grid"):
    """One feature map with every scale at every aspect ratio; in pixels of the network input."""

    base_height: Side = 256
    """Height of an anchor of scale 1 and aspect ratio 1."""
    base_width: Side = 256
    """Width of an anchor of scale 1 and aspect ratio 1."""
    scales: Annotated[tuple[Positive, ...], Ratios] = (0.5, 1.0, 2.0)
    """Multiples of the base size; the anchors of one aspect ratio stand together."""
    aspect_ratios: Annotated[tuple[Positive, ...], Ratios] = (0.5, 1.0, 2.0)
    """Width over height, for a square base."""
    height_stride: Side = 16
    """Vertical distance of the centres."""
    width_stride: Side = 16
    """Horizontal distance of the centres."""
    height_offset: Offset = 0
    """First centre from the top."""
    width_offset: Offset = 0
    """First centre from the left."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return 1


@implements(GridAnchors)
def _grid(config: GridAnchors) -> "AnchorGenerator":
    from stillbox.boxes.anchors import Grid, scale_ratio_specs

    grid = Grid(
        scale_ratio_specs(config.scales, config.aspect_ratios),
        (config.base_height, config.base_width),
        (config.height_stride, config.width_stride),
        (config.height_offset, config.width_offset),
    )
    return _on_grids((len(config.scales) * len(config.aspect_ratios),), lambda image_shape: [grid])


@dataclass(frozen=True, kw_only=True)
class AnchorGrid:
    """What stands on one feature map, in pixels of the network input."""

    sizes: Annotated[tuple[Positive, ...], AtLeastOne] = (32.0,)
    """Side of the square with the anchor's area, for each of the anchors of a location."""
    aspect_ratios: tuple[Positive, ...] = (1.0,)
    """Width over height, one for each of the sizes."""
    height_stride: Side = 16
    """Vertical distance of the centres."""
    width_stride: Side = 16
    """Horizontal distance of the centres."""
    height_offset: Offset = 0
    """First centre from the top."""
    width_offset: Offset = 0
    """First centre from the left."""


@dataclass(frozen=True, kw_only=True)
class FlexibleGridAnchors(Anchors, kind="flexible_grid"):
    """A grid of its own for every feature map."""

    grids: tuple[AnchorGrid, ...] = (AnchorGrid(),)
    """One for each map, from fine to coarse."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return len(self.grids)


@implements(FlexibleGridAnchors)
def _flexible_grid(config: FlexibleGridAnchors) -> "AnchorGenerator":
    from stillbox.boxes.anchors import BoxSpec, Grid

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


@dataclass(frozen=True, kw_only=True)
class DefaultBoxMap:
    """The default boxes of one feature map, in pixels of the network input."""

    size: Positive = 21.0
    """Side of the small square."""
    next_size: Positive = 45.0
    """Size of the next map: the large square has the geometric mean of both."""
    step: Positive = 8.0
    """Distance of the centres; the first lies half of it from the edge."""
    aspect_ratios: tuple[Positive, ...] = (2.0,)
    """Each adds two boxes with the area of the small square: so wide to high, and turned."""


@dataclass(frozen=True, kw_only=True)
class DefaultBoxes(Anchors, kind="default_boxes"):
    """Default boxes in whole steps of pixels (arXiv:1512.02325)."""

    maps: Annotated[tuple[DefaultBoxMap, ...], AtLeastOne] = (DefaultBoxMap(),)
    """One for each feature map, from fine to coarse."""
    clip: bool = True
    """Clip centres and sizes to the image. Edges may lie outside all the same."""
    order: Literal["cell_major", "anchor_major"] = "cell_major"
    """Order within a map: all boxes of a location together, or one kind of box at all locations
    after the other. Predictions follow; ties between anchors go to the first in this order."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return len(self.maps)


@implements(DefaultBoxes)
def _default_boxes(config: DefaultBoxes) -> "AnchorGenerator":
    from stillbox.boxes.anchors import (
        AnchorGenerator,
        DefaultBoxSpec,
        anchor_major_order,
        default_boxes,
    )

    specs = [
        DefaultBoxSpec(level.size, level.next_size, level.step, level.aspect_ratios)
        for level in config.maps
    ]

    def order(feature_shapes: "tuple[Shape, ...]") -> "Order":
        if config.order == "anchor_major":
            return anchor_major_order(feature_shapes, specs)
        return None

    def boxes(feature_shapes: "tuple[Shape, ...]", image_shape: "Shape") -> "AnchorBoxes":
        cell_major = default_boxes(feature_shapes, image_shape, specs, clip=config.clip)
        places = order(feature_shapes)
        return cell_major if places is None else cell_major[places]

    return AnchorGenerator(tuple(spec.boxes for spec in specs), boxes, order)
