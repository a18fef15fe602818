"""Colours, fonts and labels of pictures and charts.

The font is Pillow's own, or one of the machine that has the glyphs of the text. Labels are placed
at boxes with little overlap, never over a small object.
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
from PIL import ImageDraw, ImageFont

from stillbox.evaluation.results import shared_areas

Color = tuple[int, int, int]

PALETTE: tuple[Color, ...] = (
    (230, 57, 70),
    (0, 144, 217),
    (255, 183, 3),
    (42, 157, 93),
    (155, 93, 229),
    (251, 111, 36),
    (0, 187, 187),
    (241, 91, 181),
    (124, 181, 24),
    (63, 81, 181),
    (188, 108, 37),
    (149, 213, 178),
    (180, 20, 90),
    (144, 190, 255),
    (106, 76, 50),
    (255, 138, 128),
)
"""RGB; neighbours differ much in hue. Class ids wrap around."""


def class_color(class_id: int) -> Color:
    """Returns the RGB colour of a class id."""
    return PALETTE[(class_id - 1) % len(PALETTE)]


def text_color(background: Color) -> Color:
    """Returns black or white, whichever is easier to read on `background`."""
    # Relative luminance without its gamma: enough to choose between two.
    red, green, blue = background
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)


def css(color: Color) -> str:
    """Returns the colour as HTML and matplotlib write it, `#rrggbb`."""
    return "#{:02x}{:02x}{:02x}".format(*color)


def _folder_of_matplotlib() -> Path:
    """Returns the folder of its data without an import, which takes half a second."""
    package = find_spec("matplotlib")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "mpl-data"


# Covers Greek, Cyrillic, Hebrew, Arabic and more; matplotlib brings it along.
_BROUGHT = _folder_of_matplotlib() / "fonts/ttf/DejaVuSans.ttf"


def load_font(size: int, text: str = "") -> ImageFont.FreeTypeFont:
    """Returns a font with the glyphs of a text, preferably Pillow's, the same on all machines."""
    return _opened(font_file(text) or "", size)


@lru_cache(maxsize=64)
def _opened(path: str, size: int) -> ImageFont.FreeTypeFont:
    # Opening one takes longer than drawing a label.
    if path:
        return ImageFont.truetype(path, size)
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))


def has_glyphs(text: str) -> bool:
    """Returns whether a font of this machine has all glyphs of a text."""
    return font_file(text) is not None


@lru_cache(maxsize=4096)
def text_width(text: str, size: int) -> float:
    """Returns the width of a text in pixels: measured if it is ASCII, otherwise estimated."""
    if text.isascii():
        return load_font(size).getlength(text)
    return size * sum(map(_em, text))


def clipped(text: str, size: int, width: float) -> str:
    """Returns the text, cut to `width` pixels with dots at its end."""
    if text_width(text, size) <= width:
        return text
    # A search, because a name can have thousands of characters.
    fitting = bisect_right(
        range(1, len(text)), width, key=lambda length: text_width(text[:length] + "...", size)
    )
    return text[: max(fitting, 1)] + "..."


def _em(character: str) -> float:
    """Returns the width of a character as a part of the size of the letters."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0.0
    return 1.05 if unicodedata.east_asian_width(character) in "WF" else 0.62


@lru_cache(maxsize=4096)
def font_file(text: str) -> str | None:
    """Returns the file of a font with all glyphs; empty: Pillow's own; None: there is none."""
    if text.isascii():
        return ""
    wanted = {
        ord(character)
        for character in text
        if not character.isspace() and unicodedata.category(character) != "Cf"
    }
    paths = (str(_BROUGHT), *_system_fonts())
    return next((path for path in paths if wanted <= _characters(path)), None)


@lru_cache(maxsize=1)
def _system_fonts() -> tuple[str, ...]:
    # matplotlib keeps this list in a file: the search takes seconds on its first use.
    from matplotlib.font_manager import fontManager

    # The other fonts of matplotlib show boxes or symbols in place of letters.
    bundled = str(_folder_of_matplotlib())
    upright = [
        font
        for font in fontManager.ttflist
        if font.style == "normal"
        and not font.fname.startswith(bundled)
        # Fonts of last resort have a box for every character.
        and "last resort" not in font.name.lower()
    ]
    upright.sort(key=lambda font: (abs(int(font.weight) - 400), font.name, font.fname))
    return tuple(dict.fromkeys(font.fname for font in upright))


@lru_cache(maxsize=1024)
def _characters(path: str) -> frozenset[int]:
    """Returns the code points of a font; none if it cannot be used, as a font of bitmaps."""
    from matplotlib.ft2font import FT2Font

    try:
        ImageFont.truetype(path, 20)
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError, ValueError):
        return frozenset()


Rectangle = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels."""

# If the shorter side of a box has less room than four letters of full size, letters are smaller.
_LETTERS_OF_FULL_SIZE = 4
_SMALLEST, _LEAST_PART = 11, 0.55
# A box is small if a label would hide this part of it, and if it is a small part of the picture.
_HIDDEN_PART, _PICTURE_PART = 1 / 8, 1 / 10
# How far from its box a label may lie, in heights of a label.
_REACH = 6


@dataclass(frozen=True, kw_only=True)
class Label:
    """A label in its place."""

    place: Rectangle
    text: str
    color: Color
    """RGB of its ground."""
    size: int
    """Height of the letters in pixels."""
    leader: tuple[int, int, int, int] | None
    """x, y of the ends of the line to the box; None: the label touches the box."""


class Labels:
    """The labels of a picture of `size` (width, height), placed in order of importance.

    Small ones of `boxes` stay visible. `pad` is the margin of a text in pixels, `largest` the size
    of the letters at a large box.
    """

    def __init__(
        self, size: tuple[int, int], boxes: Sequence[Rectangle], *, pad: int, largest: int
    ) -> None:
        self._size, self._pad, self._largest = size, pad, largest
        every = np.array(boxes, np.float64).reshape(-1, 4)
        area = (every[:, 2] - every[:, 0] + 1) * (every[:, 3] - every[:, 1] + 1)
        # A label is about as wide as four letters are high.
        label = _LETTERS_OF_FULL_SIZE * largest**2
        small = (area < label / _HIDDEN_PART) & (area < _PICTURE_PART * size[0] * size[1])
        self._small = every[small]
        self.placed: list[Label] = []

    def place(self, corners: Rectangle, text: str, color: Color) -> None:
        """Places a label at a box, unless every place would hide a small object."""
        side = min(corners[2] - corners[0], corners[3] - corners[1])
        part = min(max(side / (_LETTERS_OF_FULL_SIZE * self._largest), _LEAST_PART), 1)
        size = max(round(self._largest * part), _SMALLEST)
        text = clipped(text, size, self._size[0] - 2 * self._pad)
        width = round(text_width(text, size)) + 2 * self._pad
        height = round(1.25 * size) + self._pad
        places = np.array(list(self._places(corners, width, height)), np.float64)
        others = np.array([label.place for label in self.placed], np.float64).reshape(-1, 4)
        hidden, taken = (shared_areas(places, boxes).sum(axis=1) for boxes in (self._small, others))
        # Of equally good places, the first.
        best = np.lexsort((taken, hidden))[0]
        if hidden[best]:
            return
        left, top, right, bottom = map(int, places[best])
        spot, leader = (left, top, right, bottom), _leader((left, top, right, bottom), corners)
        self.placed.append(Label(place=spot, text=text, color=color, size=size, leader=leader))

    def _places(self, corners: Rectangle, width: int, height: int) -> Iterator[Rectangle]:
        """Yields places within the picture, the usual one first."""
        left, top, right, bottom = corners
        row = max(0, min(left, self._size[0] - width))
        within = max(0, min(top, self._size[1] - height))
        usual = [(row, top - height), (row, within), (row, bottom + 1)]
        beside = [(right + 1, top), (left - width, top), (right - width, top - height)]
        around = [
            (x, y)
            for step in range(1, _REACH)
            for y in (top - (step + 1) * height, bottom + 1 + step * height)
            for x in (row, row - width, row + width)
        ]
        for x, y in (*usual, *beside, *around):
            if 0 <= x <= self._size[0] - width and 0 <= y <= self._size[1] - height:
                yield x, y, x + width, y + height
        yield row, within, row + width, within + height


def draw_labels(draw: ImageDraw.ImageDraw, labels: Sequence[Label], pad: int) -> None:
    """Draws labels, the first on top."""
    for label in reversed(labels):
        left, top, right, bottom = label.place
        if label.leader:
            draw.line(label.leader, fill=label.color, width=2)
        draw.rectangle((left, top, right, bottom), fill=label.color)
        font = _fitting(label, right - left - pad)
        place = (left + pad, (top + bottom) / 2)
        draw.text(place, label.text, fill=text_color(label.color), font=font, anchor="lm")


def _fitting(label: Label, width: int) -> ImageFont.FreeTypeFont:
    """Returns a font that is smaller where the text is wider than estimated."""
    font = load_font(label.size, label.text)
    length = font.getlength(label.text)
    if length <= width:
        return font
    return load_font(max(int(label.size * width / length), 6), label.text)


def _leader(place: Rectangle, corners: Rectangle) -> tuple[int, int, int, int] | None:
    """Returns the shortest line from a label to its box, None if they touch."""
    ends = []
    for axis in (0, 1):
        low, high = corners[axis], corners[axis + 2]
        middle = (place[axis] + place[axis + 2]) // 2
        at = min(max(middle, low), high)
        ends.append((min(max(at, place[axis]), place[axis + 2]), at))
    (x, box_x), (y, box_y) = ends
    return None if abs(x - box_x) + abs(y - box_y) <= 2 else (x, y, box_x, box_y)
