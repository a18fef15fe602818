"""Bytes of an image file to RGB pixels.

What becomes of unusual files: grayscale has three equal channels; CMYK and YCCK become RGB; an
alpha channel is left out, not blended, as TensorFlow does; 16 bits are cut to the upper 8; a
truncated or unreadable file raises `ImageError`. JPEG data damaged in the middle decode to
something, as with every decoder on libjpeg.
"""

import io
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Pixels = NDArray[np.uint8]
"""`[H, W, 3]`, RGB."""

# A file that OpenCV refuses is tried again and then reported with its record's place; its own
# lines on stderr would have neither.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
# The loader's workers are threads already: OpenCV's own would only get in their way.
cv2.setNumThreads(1)


class ImageError(ValueError):
    """Bytes that are no image, or only a part of one.

    Args:
        reason: what is wrong with them, a few words.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def decode_image(data: bytes, *, apply_exif: bool = False) -> Pixels:
    """Decodes a JPEG, PNG or other common image file to RGB.

    Args:
        data: the whole file.
        apply_exif: turn the image as its EXIF orientation says. Right for a user's photograph;
            wrong for a record, whose boxes refer to the pixels as they are stored.

    Returns:
        `[H, W, 3]` uint8.

    Raises:
        ImageError: the data are empty, truncated, corrupt or no image.
    """
    if not data:
        raise ImageError("the image has no bytes")
    flags = cv2.IMREAD_COLOR_RGB | (0 if apply_exif else cv2.IMREAD_IGNORE_ORIENTATION)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:  # for instance more pixels than OpenCV allows
        image = None
    # OpenCV refuses truncated files as a whole, so that there is no half-grey image to look for.
    return _decode_with_pillow(data, apply_exif) if image is None else cast(Pixels, image)


def _decode_with_pillow(data: bytes, apply_exif: bool) -> Pixels:
    """Decodes formats that OpenCV does not know, and finds the words for what neither can read."""
    try:
        with Image.open(io.BytesIO(data)) as file:
            image = ImageOps.exif_transpose(file) if apply_exif else file
            if image.mode.startswith("I"):  # convert() would saturate 16 bits instead of scaling
                gray = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
                return np.repeat(gray[..., None], 3, axis=2)
            return np.array(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(_reason(data, error)) from error


def _reason(data: bytes, error: Exception) -> str:
    text = str(error)
    if isinstance(error, Image.UnidentifiedImageError):
        return f"{len(data)} bytes that are no known image format"
    if "runcated" in text:
        return "the image is truncated"
    return text or type(error).__name__
