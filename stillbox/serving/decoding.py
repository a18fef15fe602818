"""Decodes images and JSON of untrusted clients; sizes are checked before anything is decoded.

Lists of pixels in JSON become arrays without a Python object for each number. The objects would
take thirty times the memory of the request, and no other thread would run while they are created.
All other JSON is small or refused.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillbox import numerals
from stillbox.image_kind import ImageKind
from stillbox.inputs.decode import FewReads, decode_image, in_range
from stillbox.predicting.backend import Pixels
from stillbox.printing import count_text
from stillbox.serving.bodies import bad_request, http_error
from stillbox.serving.foreign_bodies import refuse_other_than_json

ImageInput = bytes | NDArray[np.uint8]
"""An image file, or pixels `[h, w, C]`."""

# Pillow and the decoder recognise these by the same first bytes: the checked header belongs to the
# decoded image.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_LONGEST_SIDE = 65_535  # of a JPEG file


def image_size(image: ImageInput, max_pixels: int) -> tuple[int, int]:
    """Returns height and width of an image, by its header.

    Raises:
        HTTPException: 400 if the file is no image, 413 if it has more than `max_pixels` pixels.
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


def decode_input(image: ImageInput, kind: ImageKind, *, upright: bool) -> Pixels:
    """Returns the pixels of an image that `image_size` has accepted.

    `kind` is what the model takes, and a tensor has its channels; `upright` applies the EXIF
    orientation.

    Raises:
        HTTPException: 400, it cannot be decoded.
    """
    if isinstance(image, np.ndarray):
        return in_range(np.ascontiguousarray(image), kind)
    try:
        return decode_image(image, kind=kind, apply_exif=upright)
    except Exception as error:  # Decoders can raise any exception for broken bytes.
        raise bad_request(f"the image cannot be decoded: {error}") from error


def _read_size(file: bytes, max_pixels: int) -> tuple[int, int]:
    try:
        with Image.open(FewReads(file), formats=IMAGE_FORMATS) as opened:
            return opened.height, opened.width
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise http_error(413, f"an image has at most {max_pixels} pixels") from None
    except Exception as error:
        formats = ", ".join(IMAGE_FORMATS)
        raise bad_request(f"{count_text(len(file), 'byte')} and no image ({formats})") from error


MOST_STRINGS, MOST_OTHER = 10_000, 2**18
"""Most strings of a request, and most bytes of its JSON beside strings and pixels."""

_LONG = 256  # Shorter lists are read as other JSON.
_MOST_AXES, _MOST_IMAGES = 4, 10_000
_RUN = re.compile(rb"\[[\[\]0-9, \t\r\n]*+")
_KINDS = bytes.maketrans(b"123456789\t\r\n", b"000000000   ")
_BROKEN_NUMBER = re.compile(rb"0 +0")
_FLAT = re.compile(rb"\[[0-9,]*+\]")


@dataclass(frozen=True)
class PixelText:
    """The JSON of one image or of a flat list of pixels, without spaces, not yet checked."""

    text: bytes

    @classmethod
    def of(cls, values: list[object]) -> "PixelText":
        """Returns the text of a short list."""
        text = json.dumps(values, separators=(",", ":"), default=lambda _: None)
        return cls(text.encode("ascii"))

    def pixels(self, where: str) -> NDArray[np.uint8]:
        """Returns an array of the shape of the nested lists; `where` names it in errors.

        Raises:
            HTTPException: 400, they are no array of whole numbers in 0..255; `where` is their name
                in the message.
        """
        codes = np.frombuffer(self.text, np.uint8)
        digit = codes - ord("0") < 10
        if self.text.translate(None, b"0123456789,[]"):
            raise bad_request(f"{where}: pixels are whole numbers in 0..255")
        values = _values(codes, digit, where)
        shape = _first_lengths(self.text)
        between = codes[~digit]
        regular = math.prod(shape) == len(values) and _bracket_count(shape) == len(between)
        if not regular or between.tobytes() != _brackets(shape):
            raise bad_request(f"{where}: no array of at most {_MOST_AXES} axes")
        return values.reshape(shape)


def parse_json(body: bytes, form: str = "a JSON object") -> dict[str, object]:
    """Returns the JSON object of a body, with `PixelText` in place of long lists of pixels.

    `form` is what the path takes, for errors.

    Raises:
        HTTPException: 400, it is none, or too much beside pixels; 415, it is compressed.
    """
    refuse_other_than_json(body, form)
    pieces = body.split(b'"', 2 * MOST_STRINGS + 1)
    if len(pieces) > 2 * MOST_STRINGS + 1:
        raise bad_request(f"the JSON has more than {MOST_STRINGS} strings")
    pixels: list[PixelText] = []
    in_string, other = False, 0
    for at, piece in enumerate(pieces):
        if in_string:
            # An odd number of backslashes escapes the quotation mark behind them.
            in_string = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
            continue
        pieces[at] = rest = _without_pixels(piece, pixels)
        in_string, other = True, other + len(rest)
        if other > MOST_OTHER:
            raise _too_much()
    return _load(b'"'.join(pieces), iter(pixels))


def _too_much() -> Exception:
    return bad_request(
        f"the JSON has more than {MOST_OTHER} bytes beside strings and pixels, "
        "which are lists [h, w, 3] of whole numbers in 0..255"
    )


def _load(text: bytes, pixels: Iterator[PixelText]) -> dict[str, object]:
    try:
        content = json.loads(
            text.decode("utf-8-sig"),
            parse_constant=lambda _: next(pixels),
            parse_int=numerals.json_whole,
        )
    except (ValueError, RecursionError) as error:
        raise bad_request(f"JSON Parse error: {error}") from None
    if not isinstance(content, dict):
        raise bad_request("JSON Parse error: the body is no object")
    return content


def _without_pixels(text: bytes, pixels: list[PixelText]) -> bytes:
    """Returns JSON outside of strings with NaN in place of each `PixelText`, added to `pixels`."""
    if b"N" in text or b"I" in text:
        raise bad_request("JSON Parse error: NaN, Infinity and None are no JSON, nor other words")
    parts, begin = [], 0
    for run in _RUN.finditer(text):
        if run.start() - begin > MOST_OTHER:
            raise _too_much()
        if run.end() - run.start() >= _LONG:
            parts += [text[begin : run.start()], _cut(run[0], pixels)]
            begin = run.end()
    return b"".join([*parts, text[begin:]])


def _cut(run: bytes, pixels: list[PixelText]) -> bytes:
    """Like `_without_pixels`, for a text of brackets, digits and commas."""
    text = run.translate(None, b" \t\r\n")
    if len(text) < len(run) and _BROKEN_NUMBER.search(run.translate(_KINDS)):
        raise bad_request("JSON Parse error: there is a space inside a number")
    flat = _FLAT.match(text)
    if flat and b"[" not in text[flat.end() :]:
        pixels.append(PixelText(flat[0]))
        return b"NaN" + text[flat.end() :]
    images = text.split(b"]]],[[[", _MOST_IMAGES)
    opening = len(text) - len(text.lstrip(b"["))
    closed = text.rstrip(b",")
    closing = len(closed) - len(closed.rstrip(b"]"))
    if min(opening, closing) < 3 or len(images) > _MOST_IMAGES:
        return text
    images[0] = images[0][opening:]
    images[-1] = images[-1].rstrip(b",").rstrip(b"]")
    pixels += [PixelText(b"[[[" + image + b"]]]") for image in images]
    names = b",".join([b"NaN"] * len(images))
    return b"[" * (opening - 3) + names + b"]" * (closing - 3) + text[len(closed) :]


def _values(codes: NDArray[np.uint8], digit: NDArray[np.bool_], where: str) -> NDArray[np.uint8]:
    """Returns the numbers of a text that begins and ends with a bracket."""
    last = np.flatnonzero(digit[:-1] & ~digit[1:])
    two = digit[last - 1]
    three = two & digit[last - 2]
    first = last - two - three
    value = codes[last] - np.uint16(ord("0"))
    value += np.where(two, 10 * (codes[last - 1] - np.uint16(ord("0"))), 0)
    value += np.where(three, 100 * (codes[last - 2] - np.uint16(ord("0"))), 0)
    wrong = (three & digit[last - 3]) | (value > 255) | (two & (codes[first] == ord("0")))
    if wrong.any():
        raise bad_request(f"{where}: pixels are whole numbers in 0..255")
    if (codes[first - 1] == ord("]")).any() or (codes[last + 1] == ord("[")).any():
        raise bad_request(f"{where}: no array: a number is not followed by a comma")
    return value.astype(np.uint8)


def _first_lengths(text: bytes) -> list[int]:
    """Returns the length of the first list at each depth, the outermost first."""
    depth = min(len(text) - len(text.lstrip(b"[")), _MOST_AXES + 1)
    lengths = [text.count(b",", 0, text.find(b"]")) + 1]
    for closed in range(1, depth):
        ends = b"]" * closed
        lengths.insert(0, text.count(ends, 0, text.find(ends + b"]") + closed))
    return lengths


def _bracket_count(shape: Sequence[int]) -> int:
    """Returns the length of `_brackets`, which may be far longer than a request."""
    count = 0
    for size in reversed(shape):
        count = size * (count + 1) + 1
    return count


def _brackets(shape: Sequence[int]) -> bytes:
    """Returns the JSON of an array of this shape without its numbers."""
    text = b""
    for size in reversed(shape):
        text = b"[" + ((text + b",") * size)[:-1] + b"]"
    return text
