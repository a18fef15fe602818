"""Places labels at boxes: smaller at small boxes, with little overlap."""

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
    """Returns Pillow's own font, which does not depend on the machine."""
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))


def shortened(text: str, width: int, font: ImageFont.FreeTypeFont) -> str:
    """Returns the text, cut to `width` pixels with dots at its end."""
    if font.getlength(text) <= width:
        return text
    length = len(text)
    while length > 1 and font.getlength(text[:length] + "...") > width:
        length -= 1
    return text[:length] + "..."


@dataclass
class Labels:
    """The labels of a picture; placed in order of importance and drawn in reverse order."""

    size: tuple[int, int]
    """Width and height of the picture."""
    pad: int
    largest: int
    """Size of the letters at a large box."""
    _placed: list[tuple[Rectangle, str, Color, ImageFont.FreeTypeFont]] = field(
        default_factory=list
    )

    def place(self, corners: Rectangle, text: str, color: Color) -> None:
        """Places a label above, inside or below the box, where it overlaps others least."""
        side = min(corners[2] - corners[0], corners[3] - corners[1])
        part = min(max(side / (_LETTERS_OF_FULL_SIZE * self.largest), _LEAST_PART), 1)
        font = load_font(max(round(self.largest * part), _SMALLEST))
        text = shortened(text, self.size[0] - 2 * self.pad, font)
        width = round(font.getlength(text)) + 2 * self.pad
        height = round(font.getbbox("Ag")[3]) + self.pad
        # Of equally good places, min takes the first.
        found = min(
            self._places(corners, width, height),
            key=lambda place: _shared(place, (taken for taken, *_ in self._placed)),
        )
        self._placed.append((found, text, color, font))

    def draw(self, draw: ImageDraw.ImageDraw) -> None:
        """Draws all labels."""
        for (left, top, right, bottom), text, color, font in reversed(self._placed):
            draw.rectangle((left, top, right, bottom), fill=color)
            place = (left + self.pad, top + self.pad // 2)
            draw.text(place, text, fill=text_color(color), font=font)

    def _places(self, corners: Rectangle, width: int, height: int) -> Sequence[Rectangle]:
        """Returns the possible places within the picture, the usual one first."""
        left = max(0, min(corners[0], self.size[0] - width))
        within = max(0, min(corners[1], self.size[1] - height))
        tops = [top for top in (corners[1] - height, within, corners[3] + 1) if top >= 0]
        inside = [top for top in tops if top + height <= self.size[1]] or [within]
        return [(left, top, left + width, top + height) for top in inside]


def _shared(place: Rectangle, others: Iterable[Rectangle]) -> int:
    """Returns the number of pixels that a place shares with others."""
    return sum(
        max(0, min(place[2], other[2]) - max(place[0], other[0]))
        * max(0, min(place[3], other[3]) - max(place[1], other[1]))
        for other in others
    )
