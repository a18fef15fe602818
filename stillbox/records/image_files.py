"""What kind of image a file holds, and how it goes into a record.

JPEG and PNG are stored as they are, grayscale and palette too: decoders make three channels of
them. The rest has one outcome each, which is reported:

- CMYK (no detector input, and decoders differ in its inks): re-encoded as RGB JPEG, quality 95;
- BMP, GIF, TIFF and others: PNG without loss, of the first frame; WEBP: JPEG, quality 95;
- an EXIF orientation: see `Exif`;
- what cannot be decoded to its last row: refused.
"""

import io
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageOps, UnidentifiedImageError

from stillbox.records.problems import BadRecordError

Exif = Literal["auto", "upright", "stored"]
"""What a camera's rotation tag means for the boxes.

`upright`: the boxes were drawn on the rotated image, so its pixels are turned and encoded anew.
`stored`: they were drawn on the pixels as stored; the file stays as it is, and the tag, which no
reader of records heeds, has no effect. `auto`: what the size in the annotation says. Where there is
none, or rotation does not change the size, it is `upright`, as most tools show an image."""

_ORIENTATION = 0x0112
_QUALITY = 95


@dataclass(frozen=True)
class ImageFacts:
    """What an image file says about itself."""

    format: str
    """`JPEG`, `PNG`, ... in Pillow's words."""
    mode: str
    """`RGB`, `L` (grayscale), `CMYK`, `P` (palette), `RGBA`, ... in Pillow's words."""
    height: int
    """Rows as stored."""
    width: int
    """Columns as stored."""
    orientation: int
    """The EXIF tag, 1 to 8; 1 is upright."""

    @property
    def upright_size(self) -> tuple[int, int]:
        """Height and width after the rotation that the tag asks for."""
        turned = self.orientation >= 5
        return (self.width, self.height) if turned else (self.height, self.width)


@dataclass(frozen=True)
class PreparedImage:
    """An image that is ready for a record."""

    encoded: bytes
    """JPEG or PNG."""
    height: int
    """Rows."""
    width: int
    """Columns."""
    notes: tuple[tuple[str, str, str], ...] = ()
    """(what was special, detail, outcome) for the report."""


def inspect_image(data: bytes, *, whole: bool = True) -> ImageFacts:
    """Returns what an image is.

    Args:
        data: the file's bytes.
        whole: decode it to its end; otherwise look at its first bytes only.

    Raises:
        BadRecordError: it cannot be decoded, or not to the end.
    """
    return _open(data, whole)[1]


def prepare_image(data: bytes, claimed: tuple[int, int], exif: Exif = "auto") -> PreparedImage:
    """Returns an image as it goes into a record.

    Args:
        data: the file's bytes.
        claimed: height and width in the annotation, 0 where it says nothing.
        exif: what a rotation tag means.

    Raises:
        BadRecordError: it cannot be decoded, or not to the end.
    """
    image, facts = _open(data, True)
    notes = []
    upright = False
    if facts.orientation != 1:
        upright, why = _is_upright(facts, claimed, exif)
        outcome = "turned upright and re-encoded" if upright else "kept as stored, tag ignored"
        notes.append((f"EXIF orientation ({why})", f"orientation {facts.orientation}", outcome))
    if facts.mode in ("L", "LA", "1"):
        notes.append(("grayscale image", facts.format, "kept; decoders make three channels"))
    if facts.mode in ("RGBA", "LA", "PA"):
        notes.append(("image with transparency", facts.format, "kept; decoders drop it"))
    if facts.mode.startswith("I") and facts.format == "PNG":
        notes.append(("image with 16 bits per channel", facts.mode, "kept; decoders use 8"))
    target = _target_format(facts, notes)
    if not target and not upright:
        return PreparedImage(data, facts.height, facts.width, tuple(notes))
    if upright:
        image = ImageOps.exif_transpose(image)
    encoded = _encode(image, target or _plain_format(facts))
    return PreparedImage(encoded, image.height, image.width, tuple(notes))


def _open(data: bytes, whole: bool) -> tuple[Image.Image, ImageFacts]:
    try:
        image = Image.open(io.BytesIO(data))
        if whole:
            image.load()
        orientation = int(image.getexif().get(_ORIENTATION, 1))
    except UnidentifiedImageError as error:
        start = data[:8].hex(" ") or "no bytes"
        raise BadRecordError(
            "unreadable image", f"no known format; it starts with {start}"
        ) from error
    except (OSError, SyntaxError, ValueError, TypeError, Image.DecompressionBombError) as error:
        # Pillow's decoders use all of these for damaged files.
        raise BadRecordError("unreadable image", str(error)) from error
    facts = ImageFacts(
        str(image.format),
        image.mode,
        image.height,
        image.width,
        orientation if 1 <= orientation <= 8 else 1,
    )
    return image, facts


def _is_upright(facts: ImageFacts, claimed: tuple[int, int], exif: Exif) -> tuple[bool, str]:
    """Tells whether boxes belong to the rotated image, and what says so."""
    if exif != "auto":
        return exif == "upright", "as asked for"
    stored = (facts.height, facts.width)
    if facts.upright_size == stored:
        return True, "size tells nothing"
    if claimed == facts.upright_size:
        return True, "annotation has the rotated size"
    if claimed == stored:
        return False, "annotation has the stored size"
    return True, "annotation has neither size"


def _plain_format(facts: ImageFacts) -> str:
    # MPO is a JPEG with a second picture behind the first.
    return "JPEG" if facts.format in ("JPEG", "MPO") else "PNG"


def _target_format(facts: ImageFacts, notes: list[tuple[str, str, str]]) -> str:
    """Returns the format to encode anew in, or nothing where the file can stay as it is."""
    if facts.mode in ("CMYK", "YCCK"):
        notes.append(("CMYK image", facts.format, "re-encoded as RGB JPEG"))
        return "JPEG"
    if facts.format in ("JPEG", "MPO", "PNG"):
        return ""
    target = "JPEG" if facts.format == "WEBP" else "PNG"
    notes.append((f"{facts.format} image", facts.mode, f"re-encoded as {target}"))
    return target


def _encode(image: Image.Image, target: str) -> bytes:
    buffer = io.BytesIO()
    plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
    if target == "JPEG":
        # 4:4:4: the colours of small objects are not averaged a second time.
        plain.save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    else:
        plain.save(buffer, "PNG")
    return buffer.getvalue()
