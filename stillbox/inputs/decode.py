"""Image files to pixels, and what the header of a JPEG file says without decoding.

As RGB of 8 bits, grayscale has three equal channels; CMYK and YCCK become RGB; an alpha channel is
dropped, not blended, as in TensorFlow; see `in_eight_bits` for more bits, and `pillow_pixels` for
other kinds of images. A truncated or unreadable file raises `ImageError`, as does a small one that
claims to be a huge image. JPEG data damaged in the middle are decoded, as by every decoder based on
libjpeg. Source of the header: ITU-T T.81, annex B.
"""

import io
from typing import NamedTuple, cast

import cv2
import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from stillbox.image_kind import RGB_8, ImageKind
from stillbox.inputs.channels import with_channels
from stillbox.records.costly_images import JPEG_FRAMES, JPEG_SCAN, jpeg_segments
from stillbox.records.image_files import (
    READ_FORMATS,
    claims_too_much,
    may_be_deep,
    not_decoded,
    open_image,
    turned_upright,
)
from stillbox.records.pixels import has_wide_colors, in_eight_bits, is_deep

_START, _END = b"\xff\xd8", b"\xff\xd9"
# Baseline and extended sequential, Huffman-coded: rows come in order.
_SEQUENTIAL = (0xC0, 0xC1)
_RESTARTS, _MORE_IMAGES = 0xDD, 0xE2
# The upsampling of colours reads the rows of colours beside a row.
_ROWS_BESIDE = 8
# Most rows that are decoded together. A decoder may read ahead, but not beyond the end.
_LARGEST_BLOCK = 32


class JpegHeader(NamedTuple):
    """Size of the image, and whether its upper rows can be decoded alone."""

    height: int
    width: int
    height_at: int
    """Offset of the height in the file, two bytes."""
    divisible: bool
    """Whether all rows follow each other in one scan, which ends with the file."""


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Returns the header of a JPEG file; None for any other or a damaged one."""
    if not data.startswith(_START):
        return None
    header, divisible = None, data.endswith(_END)
    for marker, place in jpeg_segments(data):
        content = data[place + 2 : place + int.from_bytes(data[place : place + 2])]
        if marker in JPEG_FRAMES:
            header = _read_frame(marker, content, place + 2)
            parts = content[5] if header else 0
        elif marker == _RESTARTS:
            divisible &= not any(content)
        elif marker == _MORE_IMAGES:
            divisible &= not content.startswith(b"MPF\0")
        elif marker == JPEG_SCAN:
            if header is None or not content:
                return None
            return header._replace(divisible=header.divisible and divisible and content[0] == parts)
    return None


def _read_frame(marker: int, content: bytes, place: int) -> JpegHeader | None:
    if len(content) < 6 or content[0] != 8:
        return None
    height, width = int.from_bytes(content[1:3]), int.from_bytes(content[3:5])
    # Height 0: it follows behind the first scan.
    return JpegHeader(height, width, place + 1, marker in _SEQUENTIAL) if height and width else None


def upper_rows(data: bytes, header: JpegHeader, rows: int) -> bytes:
    """Returns a file with at least the upper rows, which decode to the same pixels.

    The rest of the only scan stays but is never read. Its end marker is cut off, since libjpeg
    would report superfluous bytes before it.
    """
    height = rows + _ROWS_BESIDE
    if not header.divisible or height + _LARGEST_BLOCK >= header.height:
        return data
    at = header.height_at
    return b"".join((data[:at], height.to_bytes(2), data[at + 2 : -len(_END)]))


Bytes = UInt8[np.ndarray, "_ _ _"]
"""Height, width, channels."""
FloatPixels = Float32[np.ndarray, "_ _ _"]
Pixels = Bytes | FloatPixels
"""Values in 0..255, RGB if there are three: uint8 as decoded from 8 bits, float32 from more, and
once an operation has changed values."""

_READ = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB, 4: cv2.IMREAD_UNCHANGED}
# OpenCV calls them grayscale; together with `IMREAD_COLOR_RGB` they are not.
_REDUCED = {
    1: 0,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
}
_GIF = b"GIF8"
_PNG = b"\x89PNG\r\n\x1a\n"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
# Compressed data become a thousand times as many at most.
_MANY_BYTES = 1 << 17
# Larger files may have as many pixels as OpenCV decodes, 2^30.
_SMALL_BYTES, _HUGE = 1 << 20, 1 << 15
# Files that OpenCV rejects are retried, then reported with their record's location.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
# The loader's workers are threads already.
cv2.setNumThreads(1)


class ImageError(ValueError):
    """Bytes that are no image, or only a part of one, for a short `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class FewReads(io.BytesIO):
    """An image file for Pillow that raises an error if Pillow reads very many small parts.

    Pillow takes 40 s for a file of 16 MiB with millions of parts: it reads three times for each
    chunk of a PNG file, and joins the comments of a GIF file in quadratic time.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._reads = 2000 + len(data) // (1024 if data.startswith(_GIF) else 256)

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads as any file does.

        Raises:
            OSError: there were too many reads.
        """
        self._reads -= 1
        if self._reads < 0:
            raise OSError("the image has too many parts")
        return super().read(size)


def decode_image(
    data: bytes, *, kind: ImageKind = RGB_8, apply_exif: bool = False, reduction: int = 1
) -> Pixels:
    """Decodes the file of a JPEG, PNG or other common image to pixels of a kind.

    `apply_exif` turns the image by its EXIF orientation: right for a user's photograph, wrong for a
    record, where boxes refer to the pixels as stored. `reduction` is 2, 4 or 8, for JPEG files
    only: height and width are divided by it and rounded up, at a fraction of the time.

    Raises:
        ImageError: the data are empty, truncated, corrupt, no image, of another kind that does not
            become this one, too few for the size in their header, or refused by `not_decoded`.
    """
    if not data:
        raise ImageError("the image has no bytes")
    if reason := not_decoded(data):
        raise ImageError(reason)
    data = _without_texts(data)
    if len(data) < _SMALL_BYTES and claims_too_much(_header_size(data), len(data)):
        raise ImageError(f"{len(data):,} bytes that claim to be a huge image")
    flags = _READ[kind.channels] | (0 if apply_exif else cv2.IMREAD_IGNORE_ORIENTATION)
    flags |= _REDUCED[reduction] | (0 if kind.bits == 8 else cv2.IMREAD_ANYDEPTH)
    try:
        image = None
        if _opencv_reads(data, kind):
            image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:  # for instance more pixels than OpenCV allows
        image = None
    # OpenCV rejects truncated files as a whole.
    if image is None:
        return _reduced(_decode_with_pillow(data, kind, apply_exif), reduction)
    pixels = with_channels(cast(Bytes, image))
    if kind.channels == 4:
        pixels = cast(Bytes, cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA))
    try:
        return in_range(pixels, kind)
    except ValueError as error:
        raise ImageError(str(error)) from error


def _header_size(data: bytes) -> tuple[int, int]:
    """Returns height and width by the header; 0, 0 if it is of no format of `READ_FORMATS`."""
    if (header := read_jpeg_header(data)) is not None:
        return header.height, header.width
    try:
        with open_image(FewReads(data)) as file:
            return file.height, file.width
    except Image.DecompressionBombError:
        return _HUGE, _HUGE
    except Exception:  # of any kind at damaged files; decoding gives the reason
        return 0, 0


def _without_texts(data: bytes) -> bytes:
    """Removes the texts and the colour profile of a PNG file, which OpenCV would unpack.

    Raises:
        ImageError: a chunk is longer than the rest of the file. OpenCV allocates the size that it
            claims, up to 2 GiB, before it reads the chunk.
    """
    if not data.startswith(_PNG):
        return data
    place, chunk, kept = len(_PNG), b"", [_PNG]
    while place + 8 <= len(data) and chunk != b"IEND":
        length, chunk = int.from_bytes(data[place : place + 4]), data[place + 4 : place + 8]
        if length > len(data) - place - 8:
            raise ImageError("the image is truncated")
        # Behind the data is a checksum.
        end = place + 8 + length + 4
        if chunk not in _TEXTS:
            kept.append(data[place:end])
        place = end
    whole = sum(map(len, kept)) >= min(place, len(data))
    return data if whole else b"".join([*kept, data[place:]])


def _takes_long_in_opencv(data: bytes) -> bool:
    """Returns whether OpenCV could take microseconds for each byte of the file.

    It does for a GIF file without an end, and for a PNG file with more compressed data than its
    rows need, which it unpacks to the end. Pillow does not, and is a fourth slower for others.
    """
    if data.startswith(_PNG) and len(data) > _MANY_BYTES:
        height, width = _header_size(data)
        return height * width < (Image.MAX_IMAGE_PIXELS or 0)
    return data.startswith(_GIF)


def _is_deep(data: bytes) -> bool:
    """Returns whether pixels have more than 8 bits, of which OpenCV takes the upper 8."""
    if not may_be_deep(data):
        return False
    try:
        with open_image(FewReads(data)) as file:
            return is_deep(file)
    except Exception:  # of any kind at damaged files; decoding gives the reason
        return False


def _opencv_reads(data: bytes, kind: ImageKind) -> bool:
    """Returns whether OpenCV decodes the file to a kind of image, and as it is meant.

    Gray of colours is computed by Pillow, so that it does not depend on the size of the file, and
    by the decoder of JPEG.
    """
    if kind == RGB_8:
        return not (_takes_long_in_opencv(data) or _is_deep(data))
    if kind.channels < 4 and data.startswith(_START):
        return True
    return kind.bits > 8 and kind.channels > 1 and _has_wide_colors(data, kind.channels)


def _has_wide_colors(data: bytes, channels: int) -> bool:
    """Returns whether Pillow would read only the upper bytes of at least so many channels."""
    try:
        with open_image(FewReads(data)) as file:
            return has_wide_colors(file) and len(file.getbands()) >= channels
    except Exception:  # of any kind at damaged files; decoding gives the reason
        return False


def _decode_with_pillow(data: bytes, kind: ImageKind, apply_exif: bool) -> Pixels:
    """Decodes formats that OpenCV does not support, and deep images, or raises with a reason."""
    try:
        with open_image(FewReads(data)) as file:
            return pillow_pixels(turned_upright(file) if apply_exif else file, kind)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(_reason(data, error)) from error


def pillow_pixels(image: Image.Image, kind: ImageKind) -> Pixels:
    """Returns the pixels of an image as a kind.

    Colours become the brightness of one channel; gray becomes equal colours; transparency is left
    out, unless it is the fourth channel. A fourth channel is never made up.

    Raises:
        ValueError: the image has no fourth channel, or values beyond the white of its kind.
    """
    if kind.channels == 4 and (not image.has_transparency_data or image.mode in ("LA", "La")):
        names = ", ".join(image.getbands())
        raise ValueError(f"its channels are {names}, and the model takes RGB and a fourth")
    if is_deep(image):
        whole = kind.bits > 8 and image.mode != "F"
        gray = with_channels(np.asarray(image if whole else in_eight_bits(image)))
        return in_range(np.repeat(gray, kind.channels, axis=2), kind)
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[kind.channels]
    return in_range(with_channels(np.array(image.convert(mode))), kind)


def in_range(values: np.ndarray, kind: ImageKind) -> Pixels:
    """Returns the values of an image file in 0..255; see `ImageKind`.

    Raises:
        ValueError: a value is negative or beyond white.
    """
    if values.dtype == np.uint8:
        return values.astype(kind.dtype, copy=False)
    low, high = values.min(), values.max()
    if low < 0 or high > kind.white:
        raise ValueError(
            f"its values are from {low} to {high}, and white is {kind.white} of {kind.bits} bits"
        )
    return values.astype(np.float32) * np.float32(255 / kind.white)


def _reduced(image: Pixels, reduction: int) -> Pixels:
    """Averages squares of pixels; those at the right and bottom edge may be incomplete."""
    if reduction == 1:
        return image
    rows, columns = (-side % reduction for side in image.shape[:2])
    whole = cv2.copyMakeBorder(image, 0, rows, 0, columns, cv2.BORDER_REPLICATE)
    size = whole.shape[1] // reduction, whole.shape[0] // reduction
    return with_channels(cv2.resize(whole, size, interpolation=cv2.INTER_AREA))


def _reason(data: bytes, error: Exception) -> str:
    text = str(error)
    if isinstance(error, Image.UnidentifiedImageError):
        return f"{len(data)} bytes that are no known image format ({', '.join(READ_FORMATS)})"
    if "runcated" in text:
        return "the image is truncated"
    return text or type(error).__name__
