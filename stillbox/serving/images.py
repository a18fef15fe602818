"""Decodes images of untrusted clients; the header is checked before anything is decoded."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillbox.inputs.decode import decode_image
from stillbox.predicting.backend import Pixels
from stillbox.records.image_work import costly
from stillbox.serving.responses import bad_request, http_error

ImageInput = bytes | NDArray[np.uint8]
"""An image file, or pixels `[h, w, 3]`."""

# Pillow and the decoder recognise these by the same first bytes: the checked header is that of the
# decoded image.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")


def decode_input(image: ImageInput, max_pixels: int, *, upright: bool) -> Pixels:
    """Returns the pixels `[h, w, 3]` of an image.

    Args:
        image: a file or pixels.
        max_pixels: the most that are decoded.
        upright: apply the EXIF orientation.

    Raises:
        HTTPException: 400 if the file is no image, 413 if it is too large.
    """
    if isinstance(image, np.ndarray):
        _check_size(image.shape[0], image.shape[1], max_pixels)
        return image
    if reason := costly(image):
        raise bad_request(f"the image cannot be decoded: {reason}")
    try:
        with Image.open(io.BytesIO(image), formats=FORMATS) as file:
            width, height = file.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise http_error(413, f"an image has at most {max_pixels} pixels") from None
    except Exception as error:  # Decoders can raise anything at broken bytes.
        formats = ", ".join(FORMATS)
        raise bad_request(f"{len(image)} bytes that are no image ({formats})") from error
    _check_size(height, width, max_pixels)
    try:
        return decode_image(image, apply_exif=upright)
    except Exception as error:
        raise bad_request(f"the image cannot be decoded: {error}") from error


def _check_size(height: int, width: int, max_pixels: int) -> None:
    if not 0 < height * width <= max_pixels:
        raise http_error(
            413 if height * width else 400,
            f"the image has {height} x {width} pixels; allowed are 1 to {max_pixels}",
        )
