"""From an image of any size to the network input (`core/preprocessor.py`).

Every resizer has an `input_size`: height and width of the network input in pixels. Where it does
not follow from the other fields, `canvas` gives it.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from stillbox.experiment.schema.ranges import *
from stillbox.experiment.variants import Variant

ResizeMethod = Literal["bilinear", "nearest", "bicubic", "area", "bilinear_antialias"]


class Resizer(Variant):
    """From an image of any size to the network input.

    Called as `(config, size)`, height and width of an image in pixels; returns those that it has
    inside the network input.
    """

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        raise NotImplementedError

    @property
    def pad_value(self) -> tuple[float, ...]:
        """Colour of the padding, one number for each channel, in 0..255."""
        return (0.0, 0.0, 0.0)

    @property
    def method(self) -> ResizeMethod | None:
        """Interpolation; None for a resizer that leaves every image at its size."""
        return None

    align_corners: ClassVar[bool] = False
    """Whether the corner pixels of image and result coincide."""


@dataclass(frozen=True, kw_only=True)
class FixedShapeResizer(Resizer, kind="fixed_shape"):
    """Stretches every image to one shape; the aspect ratio is not kept."""

    height: Side = 300
    """Rows of the network input, in pixels."""
    width: Side = 300
    """Columns of the network input, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation. `bilinear` is TF1's form without half-pixel centres,
    `bilinear_antialias` the triangle filter that Pillow, TF2 and JAX shrink images with."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        return self.height, self.width


@dataclass(frozen=True, kw_only=True)
class KeepAspectRatioResizer(Resizer, kind="keep_aspect_ratio"):
    """Scales the short side to `min_dimension` unless the long one would pass `max_dimension`.

    The result is padded at the bottom and right to `max_dimension` squared, always: an unpadded
    image has no fixed shape. The padding is masked and changes no result.
    """

    min_dimension: Side = 600
    """Length that the short side aims for, in pixels."""
    max_dimension: Side = 1024
    """Length that the long side may not pass, and the side of the padded canvas, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation, as for the fixed shape."""
    pad_value: tuple[ColorValue, ...] = (0.0, 0.0, 0.0)
    """Colour of the padding, one number for each channel, in 0..255."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        return self.max_dimension, self.max_dimension


@dataclass(frozen=True, kw_only=True)
class CanvasResizer(Resizer):
    """Base of the resizers without a fixed shape, which pad to a canvas; not a resizer itself.

    An image that does not fit is a bad record: it is never shrunk silently.
    """

    canvas: tuple[Side, ...] = ()
    """Height and width of the network input, in pixels. It must be given: the original has as many
    input shapes as there are image sizes."""
    pad_value: tuple[ColorValue, ...] = (0.0, 0.0, 0.0)
    """Colour of the padding, one number for each channel, in 0..255."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        # Rules about sizes run beside the one that demands a canvas.
        return (self.canvas[0], self.canvas[1]) if len(self.canvas) == 2 else (0, 0)


@dataclass(frozen=True, kw_only=True)
class IdentityResizer(CanvasResizer, kind="identity"):
    """Leaves every image at its size and pads it at the bottom and right to `canvas`."""


@dataclass(frozen=True, kw_only=True)
class ConditionalShapeResizer(CanvasResizer, kind="conditional_shape"):
    """Shrinks large images or enlarges small ones, the aspect ratio kept, and pads to `canvas`.

    Sizes are cut to whole pixels, and the corner pixels of image and result coincide
    (`align_corners`), as in the original.
    """

    condition: Literal["greater", "smaller"] = "greater"
    """`greater`: a long side above `threshold` becomes `threshold`; `smaller`: a short side below
    `threshold` becomes `threshold`. Other images keep their size."""
    threshold: Side = 300
    """Length of a side, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation."""
    align_corners = True


@dataclass(frozen=True, kw_only=True)
class PadToMultipleResizer(CanvasResizer, kind="pad_to_multiple"):
    """Leaves every image at its size and pads it at the bottom and right to `canvas`.

    The original pads to the next multiple; here the one canvas is a multiple.
    """

    multiple: Side = 1
    """What height and width of the canvas are a multiple of, in pixels."""


@dataclass(frozen=True, kw_only=True)
class ScaleJitterResizer(Resizer, kind="scale_jitter"):
    """Fits every image into `height` by `width`, the aspect ratio kept; training draws the scale.

    In training the frame that the image is fitted into is drawn anew for every image and epoch:
    `height` and `width` times a number between `min_scale` and `max_scale`. Of what is then larger
    than `height` by `width`, a part at a drawn place is kept; what is smaller is padded at the
    bottom and right. Boxes end one pixel before the bottom and right edges of `height` by `width`,
    and those that nothing is left of are dropped. Everywhere else the scale is 1
    (`tpu/models/official/detection/utils/input_utils.py`).
    """

    height: Side = 640
    """Rows that the image is fitted into, in pixels."""
    width: Side = 640
    """Columns that the image is fitted into, in pixels."""
    min_scale: Positive = 1.0
    """Least number that height and width are multiplied by, in training."""
    max_scale: Positive = 1.0
    """Greatest number that height and width are multiplied by, in training."""
    multiple: Side = 1
    """Pad height and width of the network input to a multiple of this, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation, as for the fixed shape."""
    pad_value: tuple[ColorValue, ...] = (0.0, 0.0, 0.0)
    """Colour of the padding, one number for each channel, in 0..255."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network input, in pixels."""
        # Rules about sizes run beside the one that demands a multiple of at least 1.
        multiple = max(self.multiple, 1)
        return self.height + -self.height % multiple, self.width + -self.width % multiple
