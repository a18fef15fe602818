"""From proposals to crops of fixed size (`object_detection/utils/spatial_transform_ops.py`)."""

from dataclasses import dataclass
from typing import Literal

from stillbox.experiment.schema.ranges import *
from stillbox.experiment.variants import Variant


class RoiCrop(Variant):
    """From feature maps and boxes to one crop for each box.

    Called as `(config, maps, boxes, windows, input_size)`: feature maps `[B, H, W, C]` from fine to
    coarse; boxes `[B, P, 4]`, normalised to the windows; windows `[B, 2]`, height and width in
    pixels of the part of each network input that counts, from its upper left corner; height and
    width of the network input. Returns `[B, P, S, S, C]`, S being `output_size`. A box of a pyramid
    is cropped from the level of its size (arXiv:1612.03144, equation 1).
    """

    @property
    def output_size(self) -> int:
        """Height and width of a crop."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class CropAndResize(RoiCrop, kind="crop_and_resize"):
    """Bilinear samples at evenly spaced points from edge to edge of a box, then max pooling."""

    size: KernelSide = 14
    """Points in a row and in a column of a box (`initial_crop_size`)."""
    pool_size: KernelSide = 2
    """Side of the window of max pooling, without padding (`maxpool_kernel_size`)."""
    pool_stride: KernelSide = 2
    """Distance of the windows (`maxpool_stride`)."""
    outside: Literal["zero", "fade"] = "zero"
    """Value of a point outside of the map: 0, as in `tf.image.crop_and_resize`, or from those of
    its four neighbours that are inside, as in the original's form by matrix products."""

    @property
    def output_size(self) -> int:
        """Height and width of a crop after pooling."""
        return (self.size - self.pool_size) // self.pool_stride + 1


@dataclass(frozen=True, kw_only=True)
class RoiAlign(RoiCrop, kind="roi_align"):
    """The mean of bilinear samples in each cell of a box (arXiv:1703.06870)."""

    size: KernelSide = 7
    """Rows and columns of cells."""
    samples: Count = 2
    """Points in a row and in a column of a cell."""

    @property
    def output_size(self) -> int:
        """Height and width of a crop."""
        return self.size
