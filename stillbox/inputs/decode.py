"""Image files to RGB pixels.

Grayscale has three equal channels; CMYK and YCCK become RGB; an alpha channel is dropped, not
blended, as in TensorFlow; 16 bits are cut to the upper 8; a truncated or unreadable file raises
`ImageError`. JPEG data damaged in the middle are decoded, as by every decoder based on libjpeg.
"""

import io
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Pixels = NDArray[np.uint8]
"""`[H, W, 3]`, RGB."""

# Files that OpenCV rejects are retried, then reported with their record's location.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
# The loader's workers are threads already.
cv2.setNumThreads(1)


class ImageError(ValueError):
    """Bytes that are no image, or only a part of one; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def decode_image(data: bytes, *, apply_exif: bool = False) -> Pixels:
    """Decodes a JPEG, PNG or other common image file to `[H, W, 3]` uint8 RGB.

    Args:
        data: the whole file.
        apply_exif: apply the EXIF orientation. Right for a user's photograph; wrong for a record,
            whose boxes refer to the pixels as they are stored.

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
    # OpenCV rejects truncated files as a whole.
    return _decode_with_pillow(data, apply_exif) if image is None else cast(Pixels, image)


def _decode_with_pillow(data: bytes, apply_exif: bool) -> Pixels:
    """Decodes formats that OpenCV does not support, or raises with a reason."""
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
