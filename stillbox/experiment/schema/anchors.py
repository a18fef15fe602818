"""Anchors: the boxes that predictions are relative to.

The original's `object_detection/anchor_generators`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

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
from stillbox.experiment.variants import RegisteredConfig


class Anchors(RegisteredConfig):
    """The boxes that predictions are relative to.

    Called as `(config)`; returns a `models.anchors.AnchorGenerator`.
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
    """Order at a location, which is that of the head's channels: the sizes of one aspect ratio
    together, or the aspect ratios of one size."""

    def count_maps(self) -> int:
        """Returns how many feature maps carry anchors."""
        return self.max_level - self.min_level + 1


@dataclass(frozen=True, kw_only=True)
class GridAnchors(Anchors, kind="grid"):
    """One feature map with every scale at every aspect ratio; in pixels of the network input."""

    base_height: Side = 256
    """Height of an anchor of scale 1 and aspect ratio 1."""
    base_width: Side = 256
    """Width of an anchor of scale 1 and aspect ratio 1."""
    scales: Annotated[tuple[Positive, ...], Ratios] = (0.5, 1.0, 2.0)
    """Multiples of the base size; those of one aspect ratio stand together."""
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
