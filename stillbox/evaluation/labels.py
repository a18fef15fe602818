"""Writes labels at boxes, small at small boxes, and beside each other rather than on each other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from PIL import ImageDraw, ImageFont

from stillbox.evaluation.palette import Color, text_color

Rectangle = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels."""

# A box whose shorter side has less than four letters of full size has smaller ones.
_LETTERS_OF_FULL_SIZE = 4
_SMALLEST, _LEAST_PART = 11, 0.55


def load_font(size: int) -> ImageFont.FreeTypeFont:
    """Returns the one font of all pictures: Pillow's own, whatever the machine has installed."""
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))


def shortened(text: str, width: int, font: ImageFont.FreeTypeFont) -> str:
    """Returns the text, or as much of it as fits into `width` pixels with dots at its end."""
    if font.getlength(text) <= width:
        return text
    length = len(text)
    while length > 1 and font.getlength(text[:length] + "...") > width:
        length -= 1
    return text[:length] + "..."


@dataclass
class Labels:
    """The labels of a picture; they are placed best first, and drawn best last, thus on top."""

    size: tuple[int, int]
    """Width and height of the picture."""
    pad: int
    """Pixels around a text."""
    largest: int
    """Size of the letters at a large box."""
    _placed: list[tuple[Rectangle, str, Color, ImageFont.FreeTypeFont]] = field(
        default_factory=list
    )

    def place(self, corners: Rectangle, text: str, color: Color) -> None:
        """Finds a place above the box, inside it or below it that as few labels as can be have."""
        side = min(corners[2] - corners[0], corners[3] - corners[1])
        part = min(max(side / (_LETTERS_OF_FULL_SIZE * self.largest), _LEAST_PART), 1)
        font = load_font(max(round(self.largest * part), _SMALLEST))
        text = shortened(text, self.size[0] - 2 * self.pad, font)
        width = round(font.getlength(text)) + 2 * self.pad
        height = round(font.getbbox("Ag")[3]) + self.pad
        found = min(
            self._places(corners, width, height),
            key=lambda place: _shared(place, (taken for taken, *_ in self._placed)),
        )
        self._placed.append((found, text, color, font))

    def draw(self, draw: ImageDraw.ImageDraw) -> None:
        """Draws all of them."""
        for (left, top, right, bottom), text, color, font in reversed(self._placed):
            draw.rectangle((left, top, right, bottom), fill=color)
            place = (left + self.pad, top + self.pad // 2)
            draw.text(place, text, fill=text_color(color), font=font)

    def _places(self, corners: Rectangle, width: int, height: int) -> Sequence[Rectangle]:
        """Returns where a label may be, the usual place first; none runs over the edge."""
        left = max(0, min(corners[0], self.size[0] - width))
        within = max(0, min(corners[1], self.size[1] - height))
        tops = [top for top in (corners[1] - height, within, corners[3] + 1) if top >= 0]
        # min takes the first of equals, and below the edge there is nothing.
        inside = [top for top in tops if top + height <= self.size[1]] or [within]
        return [(left, top, left + width, top + height) for top in inside]


def _shared(place: Rectangle, others: Iterable[Rectangle]) -> int:
    """Returns the pixels that a place has in common with others."""
    return sum(
        max(0, min(place[2], other[2]) - max(place[0], other[0]))
        * max(0, min(place[3], other[3]) - max(place[1], other[1]))
        for other in others
    )
