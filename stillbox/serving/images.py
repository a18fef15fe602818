"""Decodes images of untrusted clients; the header is checked before anything is decoded."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillbox.inputs.decode import FewReads, decode_image
from stillbox.predicting.backend import Pixels
from stillbox.printing import count_text
from stillbox.serving.responses import bad_request, http_error

ImageInput = bytes | NDArray[np.uint8]
"""An image file, or pixels `[h, w, 3]`."""

# Pillow and the decoder recognise these by the same first bytes: the checked header is that of the
# decoded image.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_LONGEST_SIDE = 65_535  # of a JPEG file


def image_size(image: ImageInput, max_pixels: int) -> tuple[int, int]:
    """Returns height and width of an image, by its header.

    Args:
        image: a file or pixels.
        max_pixels: the most that are decoded.

    Raises:
        HTTPException: 400 if the file is no image, 413 if it is too large.
    """
    height, width = (
        image.shape[:2] if isinstance(image, np.ndarray) else _read_size(image, max_pixels)
    )
    if not 0 < height * width <= max_pixels or max(height, width) > _LONGEST_SIDE:
        raise http_error(
            413 if height * width else 400,
            f"the image has {height} x {width} pixels; allowed are 1 to {max_pixels}, "
            f"at most {_LONGEST_SIDE} on a side",
        )
    return height, width


def decode_input(image: ImageInput, *, upright: bool) -> Pixels:
    """Returns the pixels `[h, w, 3]` of an image that `image_size` has accepted.

    Args:
        image: a file or pixels.
        upright: apply the EXIF orientation.

    Raises:
        HTTPException: 400, it cannot be decoded.
    """
    if isinstance(image, np.ndarray):
        return np.ascontiguousarray(image)
    try:
        return decode_image(image, apply_exif=upright)
    except Exception as error:  # Decoders can raise anything at broken bytes.
        raise bad_request(f"the image cannot be decoded: {error}") from error


def _read_size(file: bytes, max_pixels: int) -> tuple[int, int]:
    try:
        with Image.open(FewReads(file), formats=FORMATS) as opened:
            return opened.height, opened.width
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise http_error(413, f"an image has at most {max_pixels} pixels") from None
    except Exception as error:
        formats = ", ".join(FORMATS)
        raise bad_request(f"{count_text(len(file), 'byte')} and no image ({formats})") from error
