"""The boxes that predictions are relative to (fact sheet 3.4)."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class SsdAnchors:
    """SSD's anchors: one scale a feature map, several aspect ratios (fact sheet 3.4)."""

    kind: ClassVar[str] = "ssd"
    num_layers: int = 6
    """Feature maps that carry anchors."""
    min_scale: float = 0.2
    """Scale of the finest map, as a share of the image's shorter side."""
    max_scale: float = 0.95
    """Scale of the coarsest map."""
    scales: tuple[float, ...] = ()
    """Explicit scales, one a map; when given, `min_scale` and `max_scale` are not used."""
    aspect_ratios: tuple[float, ...] = (1.0, 2.0, 3.0, 0.5, 1.0 / 3)
    """Width over height, in the order of the head's channels."""
    interpolated_scale_aspect_ratio: float = 1.0
    """Aspect ratio of one further anchor between two scales; 0 leaves it out."""
    reduce_boxes_in_lowest_layer: bool = True
    """Three anchors instead of six on the finest map."""
    base_anchor_height: float = 1.0
    """Height that scale 1 stands for."""
    base_anchor_width: float = 1.0
    """Width that scale 1 stands for."""
    height_strides: tuple[int, ...] = ()
    """Vertical distance of the centres in pixels, one a map; empty: image over map."""
    width_strides: tuple[int, ...] = ()
    """Horizontal distance of the centres in pixels."""
    height_offsets: tuple[int, ...] = ()
    """First centre from the top in pixels, one a map; empty: half a stride."""
    width_offsets: tuple[int, ...] = ()
    """First centre from the left in pixels."""


Anchors = SsdAnchors
