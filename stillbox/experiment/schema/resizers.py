"""From an image of any size to the network input (fact sheet 3.1)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

ResizeMethod = Literal["bilinear", "nearest", "bicubic", "area", "bilinear_antialias"]


@dataclass(frozen=True, kw_only=True)
class FixedShapeResizer:
    """Stretches every image to one shape; the aspect ratio is not kept."""

    kind: ClassVar[str] = "fixed_shape"
    height: int = 300
    """Rows of the network input, in pixels."""
    width: int = 300
    """Columns of the network input, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation. `bilinear` is TF1's old form without half-pixel centres (fact sheet 3.1),
    `bilinear_antialias` the triangle filter that Pillow, TF2 and JAX shrink images with."""


@dataclass(frozen=True, kw_only=True)
class KeepAspectRatioResizer:
    """Scales the short side to `min_dimension` unless the long one would pass `max_dimension`.

    The result is padded at the bottom and right to `max_dimension` squared, always: an unpadded
    image has no fixed shape. The padding is masked and changes no result.
    """

    kind: ClassVar[str] = "keep_aspect_ratio"
    min_dimension: int = 600
    """Length that the short side aims for, in pixels."""
    max_dimension: int = 1024
    """Length that the long side may not pass, and the side of the padded canvas, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation, as for the fixed shape."""
    pad_value: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Colour of the padding, one number for each channel, in 0..255."""


Resizer = FixedShapeResizer | KeepAspectRatioResizer
