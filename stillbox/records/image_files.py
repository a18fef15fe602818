"""Inspects image files and prepares them for records.

JPEG and PNG are stored unchanged, grayscale and palette too: decoders make three channels. Other
files are treated as follows, and reported:

- CMYK (decoders differ in its inks): re-encoded as RGB JPEG, quality 95;
- BMP, GIF, TIFF, JPEG 2000, PPM, PCX and Sun raster: PNG without loss, of the first frame; WEBP,
  AVIF and HEIC: JPEG, quality 95;
- an EXIF orientation: see `Exif`;
- integers of more than 8 bits, and floats: PNG of the 8 bits that the set uses, unless it is a PNG
  file of gray that uses all of 16; of colours with 16 bits, the upper 8 are taken; with `keep_bits`
  PNG of all bits of integers;
- an image that cannot be decoded to its last row: refused.
"""

import importlib
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import IO, Literal, cast

import cv2
import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from stillbox.image_kind import RGB_8, ImageKind
from stillbox.records.costly_images import JPEG_START, PNG_START, costly
from stillbox.records.example import Example
from stillbox.records.file_kinds import other_content
from stillbox.records.pixels import (
    FEW_VALUES,
    NO_DEEP,
    Brightest,
    brightest_pixel,
    few_values,
    has_wide_colors,
    in_eight_bits,
    is_deep,
    upper_bits,
    used_bits,
)
from stillbox.records.problems import BadRecordError

Exif = Literal["auto", "upright", "stored"]
"""The relation of boxes to a camera's rotation tag.

`upright`: the boxes were drawn on the rotated image, so its pixels are rotated and re-encoded.
`stored`: they were drawn on the pixels as stored; the file stays unchanged, and readers of records
ignore the tag. `auto`: the size in the annotation decides; `upright` if there is none or rotation
does not change it."""

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"),
    *(".avif", ".jp2", ".j2k", ".jpx", ".heic", ".heif", ".ppm", ".pgm", ".pbm", ".pnm"),
)
"""Names of image files, in folders and patterns of all verbs; HEIC needs `pillow-heif`."""

READ_FORMATS = (
    *("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "AVIF", "JPEG2000", "HEIF"),
    *("PPM", "PCX", "SUN"),
)
"""Formats that Pillow may read, by its names; MPO is read as JPEG."""

MAX_IMAGE_BYTES = 2**29
"""Greatest size of an image file: a bitmap of 170 million pixels."""
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUALITY = 95
_MANY_PIXELS, _MOST_PIXELS_A_BYTE = 2**25, 1000
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_HEIF_BYTES = 64
"""The first box of a file names its kinds."""
_LOSSY = ("WEBP", "AVIF", "HEIF")
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_NEVER_DEEP = (JPEG_START, b"BM", b"GIF8", b"RIFF")
_JPEG = ("JPEG", "MPO")  # MPO is a JPEG with a second picture behind the first


_Note = tuple[str, str, str]
_SIXTEEN, _SCALED = "image with 16 bits per channel", "scaled to 8 bits"


@dataclass(frozen=True)
class ImageInfo:
    """Properties of an image file, as stored."""

    format: str
    """Pillow's name, such as `JPEG`."""
    mode: str
    """Pillow's mode: `RGB`, `L` (grayscale), `CMYK`, `P` (palette), `RGBA`, ..."""
    height: int
    width: int
    orientation: int
    """The EXIF tag, 1 to 8; 1 is upright."""
    upper_bytes: bool = False
    """Channels have 16 bits, of which Pillow reads the upper 8."""
    few_values: int = 0
    """See `few_values`; 0 too if only the header was read."""

    @property
    def upright_size(self) -> tuple[int, int]:
        """Height and width after rotation according to the tag."""
        size = (self.height, self.width)
        return size[::-1] if self.orientation >= 5 else size


@dataclass(frozen=True)
class PreparedImage:
    """An image that is ready for a record."""

    encoded: bytes
    """JPEG or PNG."""
    height: int
    width: int
    notes: tuple[_Note, ...] = ()
    """(reason, detail, action) for the report."""
    kind: ImageKind = RGB_8
    """What the image holds: brightness alone, or a fourth channel that is not the same everywhere,
    and the bits of its set."""


def inspect_image(data: bytes, *, whole: bool = True, quick: bool = False) -> ImageInfo:
    """Returns the properties of an image file, decoded to its end or from its header only.

    `quick` decodes a JPEG file to an eighth of its size, unless that shows few values.

    Raises:
        BadRecordError: it cannot be decoded.
    """
    image, info = _open(data, whole, quick)
    if not whole:
        return info
    with _reported(data):
        few = few_values(in_eight_bits(image))
    return inspect_image(data) if few and quick else replace(info, few_values=few)


def prepare_image(
    data: bytes,
    claimed: tuple[int, int],
    exif: Exif = "auto",
    brightest: Brightest = NO_DEEP,
    *,
    keep_bits: bool = False,
) -> PreparedImage:
    """Returns an image as it goes into a record.

    `claimed` is height and width in the annotation, 0 if it has none; `brightest` is of the set.
    With `keep_bits` integers of more than 8 bits stay as they are.

    Raises:
        BadRecordError: it cannot be decoded, or not to the end, or has no usable 8 bits.
    """
    image, info = _open(data, True)
    notes: list[_Note] = []
    upright = _note_orientation(info, claimed, exif, notes)
    in_image = brightest_pixel(image)
    turned = turned_upright(image) if upright else image
    plain = upper_bits(turned, in_image.joined(brightest))
    few = few_values(plain)
    bits = _kept_bits(info, in_image.joined(brightest)) if keep_bits and not upright else 8
    if bits > 8:
        return _with_all_bits(data, image, info, bits, notes)
    _note_channels(info, few, notes)
    scaled = is_deep(image) and _note_scaling(info, in_image, brightest, notes)
    target = _target_format(info, notes)
    if few:
        notes.append((FEW_VALUES, f"{few} of 256", "kept"))
    kind = ImageKind(_channels(plain, target))
    if not (scaled or target or upright):
        return PreparedImage(data, info.height, info.width, tuple(notes), kind)
    stored = plain if kind.channels in (1, 4) else plain.convert("RGB")
    encoded = encode_image(stored, target or ("JPEG" if info.format in _JPEG else "PNG"))
    return PreparedImage(encoded, plain.height, plain.width, tuple(notes), kind)


def _channels(image: Image.Image, target: str = "") -> int:
    """Returns the channels that an image uses, as a file of a format: 1, 3 or 4."""
    if image.mode in ("L", "LA", "1") or is_deep(image):
        return 1
    if image.mode == "RGBA" and target != "JPEG":
        low, high = cast("tuple[int, int]", image.getchannel(3).getextrema())
        return 4 if low < high else 3
    return 3


def _kept_bits(info: ImageInfo, brightest: Brightest) -> int:
    """Returns the bits of an image that can be kept; 8 if there are no more, or too many."""
    if info.upper_bytes:
        return 16
    bits = used_bits(info.mode, brightest) if info.mode.startswith("I") else 8
    return bits if bits <= 16 else 8


def _with_all_bits(
    data: bytes, image: Image.Image, info: ImageInfo, bits: int, notes: list[_Note]
) -> PreparedImage:
    """Returns an image of more than 8 bits as PNG with all of them."""
    kind = ImageKind(_channels(image), bits)
    kept = "kept" if info.format == "PNG" else "all kept, in PNG"
    notes.append((f"image with {bits} bits per channel", info.mode, kept))
    encoded = data
    if info.format != "PNG":
        # Pillow reads the upper bytes of colours.
        flags = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if info.upper_bytes else None
        pixels = np.asarray(image).astype(np.uint16) if pixels is None else pixels
        encoded = cv2.imencode(".png", pixels)[1].tobytes()
    return PreparedImage(encoded, info.height, info.width, tuple(notes), kind)


def _note_orientation(
    info: ImageInfo, claimed: tuple[int, int], exif: Exif, notes: list[_Note]
) -> bool:
    """Returns whether the image must be turned."""
    if info.orientation == 1:
        return False
    upright, why = _is_upright(info, claimed, exif)
    outcome = "turned upright and re-encoded" if upright else "kept as stored, tag ignored"
    notes.append((f"EXIF orientation ({why})", f"orientation {info.orientation}", outcome))
    return upright


def _note_channels(info: ImageInfo, few: int, notes: list[_Note]) -> None:
    if info.mode in ("L", "LA", "1"):
        notes.append(("grayscale image", info.format, "kept; decoders make three channels"))
    if info.mode in ("RGBA", "LA", "PA"):
        notes.append(("image with transparency", info.format, "kept; decoders drop it"))
    if not info.upper_bytes:
        return
    if few:
        detail = f"the upper 8 hold {few} of 256 values; save it with 8 bits"
        raise BadRecordError(_SIXTEEN, detail)
    action = "kept; decoders use 8" if info.format == "PNG" else "the upper 8 kept"
    notes.append((_SIXTEEN, info.mode, action))


def _note_scaling(
    info: ImageInfo, in_image: Brightest, brightest: Brightest, notes: list[_Note]
) -> bool:
    """Returns whether pixels of more than 8 bits are others than decoders take of the file."""
    bits = used_bits(info.mode, in_image.joined(brightest))
    if info.mode == "F":
        notes.append(("image of floats", f"0 to {2**bits - 1 or 1}", _SCALED))
        return True
    kept = info.format == "PNG" and used_bits(info.mode, in_image) == bits == 16
    action = "kept; decoders use 8" if kept else _SCALED
    notes.append((f"image with {bits} bits per channel", info.mode, action))
    return not kept


def brightest_in(data: bytes) -> Brightest:
    """Returns the brightest pixel of an image file if it is a deep one; see `brightest_pixel`.

    Raises:
        BadRecordError: it cannot be decoded, or no pixel is the brightest.
    """
    if not may_be_deep(data):
        return NO_DEEP
    with _reported(data):
        return brightest_pixel(_header(data))


def may_be_deep(start: bytes) -> bool:
    """Returns whether an image can have more than 8 bits by the first 32 bytes of its file."""
    if start.startswith(PNG_START):
        # Depth and kind, of the header; Pillow reads the upper bytes of colours.
        return start[24:26] == b"\x10\0"
    return not start.startswith(_NEVER_DEEP)


def claims_too_much(size: tuple[int, int], count: int) -> bool:
    """Tells whether a header claims more pixels than any image of `count` bytes has."""
    return size[0] * size[1] > max(_MANY_PIXELS, _MOST_PIXELS_A_BYTE * count)


def not_decoded(data: bytes) -> str:
    """Returns why a file must not or cannot be decoded; empty if there is no reason."""
    return costly(data) or _heif(data[:_HEIF_BYTES])


def open_image(file: IO[bytes]) -> ImageFile.ImageFile:
    """Opens an image file of `READ_FORMATS` by its header, as Pillow's `open` does.

    The content decides about the format, whatever the name, and Pillow has EPS files run as
    programs by Ghostscript.
    """
    Image.init()  # Pillow may be built without some formats.
    return Image.open(file, formats=[name for name in READ_FORMATS if name in Image.OPEN])


def _heif(start: bytes) -> str:
    """Makes Pillow read HEIC, the format of many phones, or returns what is missing."""
    named = start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS and b"avif" not in start
    if not named or _pillow_reads_heif():
        return ""
    return "a HEIC image, which needs the package pillow-heif (pip install pillow-heif)"


@cache
def _pillow_reads_heif() -> bool:
    try:
        importlib.import_module("pillow_heif").register_heif_opener()
    except ImportError:
        return False
    return True


def stored_size(example: Example) -> tuple[int, int]:
    """Returns height and width of the stored image, in pixels.

    The header of the image has precedence over the record. The record's numbers are optional and
    sometimes wrong: a wrong size would move objects between small, medium and large.
    """
    try:
        image = inspect_image(example.encoded, whole=False)
    except BadRecordError:
        return example.height, example.width
    return image.height, image.width


def _open(data: bytes, whole: bool, quick: bool = False) -> tuple[Image.Image, ImageInfo]:
    with _reported(data):
        image = _header(data)
        width, height = image.size
        wide = has_wide_colors(image)
        if quick:
            image.draft(image.mode, (1, 1))
        if whole:
            image.load()
    info = ImageInfo(str(image.format), image.mode, height, width, exif_orientation(image), wide)
    return image, info


def _header(data: bytes) -> ImageFile.ImageFile:
    if reason := not_decoded(data):
        raise ValueError(reason)
    image = open_image(io.BytesIO(data))
    if claims_too_much(image.size, len(data)):
        raise ValueError(f"{len(data):,} bytes claim to have {image.width} x {image.height}")
    return image


@contextmanager
def _reported(data: bytes) -> Iterator[None]:
    """Raises what Pillow raises at a damaged or unknown file as `BadRecordError`."""
    try:
        yield
    except BadRecordError:
        raise
    except UnidentifiedImageError as error:
        start, known = data[:8].hex(" "), ", ".join(READ_FORMATS)
        detail = f"no known format; it starts with {start}; known are {known}"
        if other := other_content(data[:64]):
            detail = other
        elif data.startswith(_TIFF_STARTS):
            detail = "a TIFF file of pixels that Pillow does not read; save it with 8 bits"
        raise BadRecordError("unreadable image", detail) from error
    except (OSError, SyntaxError, ValueError, TypeError, Image.DecompressionBombError) as error:
        # Pillow's decoders use all of these for damaged files.
        raise BadRecordError("unreadable image", str(error)) from error


def exif_orientation(image: Image.Image) -> int:
    """Returns the EXIF tag, 1 to 8; 1 without one, or if it is damaged: the pixels are not."""
    try:
        orientation = int(image.getexif().get(_ORIENTATION, 1))
    except (OSError, SyntaxError, ValueError, TypeError, struct.error):
        return 1
    return orientation if 1 <= orientation <= 8 else 1


def turned_upright(image: Image.Image) -> Image.Image:
    """Returns an image turned by its EXIF tag.

    Pillow's `exif_transpose` writes all other tags anew, and raises errors of many kinds if one is
    damaged.
    """
    turn = _TURNS.get(exif_orientation(image))
    return image if turn is None else image.transpose(turn)


def _is_upright(info: ImageInfo, claimed: tuple[int, int], exif: Exif) -> tuple[bool, str]:
    """Returns whether boxes belong to the rotated image, and the reason."""
    if exif != "auto":
        return exif == "upright", "as asked for"
    stored = (info.height, info.width)
    if info.upright_size == stored:
        return True, "size does not decide"
    if claimed == info.upright_size:
        return True, "annotation has the rotated size"
    if claimed == stored:
        return False, "annotation has the stored size"
    return True, "annotation has neither size"


def _target_format(info: ImageInfo, notes: list[_Note]) -> str:
    """Returns the format to re-encode in, or nothing if the file can stay as it is."""
    if info.mode in ("CMYK", "YCCK"):
        notes.append(("CMYK image", info.format, "re-encoded as RGB JPEG"))
        return "JPEG"
    if info.format in (*_JPEG, "PNG"):
        return ""
    target = "JPEG" if info.format in _LOSSY else "PNG"
    notes.append((f"{info.format} image", info.mode, f"re-encoded as {target}"))
    return target


def encode_image(image: Image.Image, target: str) -> bytes:
    """Returns an image of 8 bits as PNG, or as JPEG with full colours and little loss."""
    modes = ("L", "RGB", "RGBA") if target == "PNG" else ("L", "RGB")
    buffer, plain = io.BytesIO(), image if image.mode in modes else image.convert("RGB")
    if target == "JPEG":
        # 4:4:4: the colours of small objects are not averaged a second time.
        plain.save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    else:
        plain.save(buffer, "PNG")
    return buffer.getvalue()
