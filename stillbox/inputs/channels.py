"""Arrays of images with their axis of channels, and as other kinds of images."""

import numpy as np
from jaxtyping import Num, UInt8

from stillbox.image_kind import ImageKind, per_channel


def with_channels(pixels: Num[np.ndarray, "..."]) -> Num[np.ndarray, "H W C"]:
    """Returns pixels with the axis of channels, which OpenCV and Pillow drop if it is 1."""
    return pixels if pixels.ndim == 3 else pixels[..., None]


def of_kind(rgb: UInt8[np.ndarray, "H W 3"], kind: ImageKind) -> Num[np.ndarray, "H W C"]:
    """Returns a drawn image as another kind; its fourth channel is the mean of the three."""
    if kind.channels == 3:
        return rgb.astype(kind.dtype, copy=False)
    planes = per_channel(list(np.moveaxis(rgb.astype(np.float32), 2, 0)), kind.channels)
    return np.rint(np.stack(planes, axis=2)).astype(kind.dtype)


def for_people(pixels: Num[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W 3"]:
    """Returns an image as RGB of 8 bits: brightness is gray, and a fourth channel is left out."""
    if pixels.shape[2] == 3 and pixels.dtype == np.uint8:
        return pixels
    colors = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    if colors.dtype != np.uint8:
        colors = colors.clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(colors)
