"""Places labels at boxes, with little overlap and never over a small object."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import ImageDraw, ImageFont

from stillbox.evaluation.fonts import clipped, load_font, text_width
from stillbox.evaluation.palette import Color, text_color

Rectangle = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels."""

# A box whose shorter side has less than four letters of full size has smaller ones.
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
    """The line from a label that does not touch its box: x, y of its ends."""


class Labels:
    """The labels of a picture, placed in order of importance.

    Args:
        size: width and height of the picture.
        boxes: all boxes of the picture; small ones stay visible.
        pad: pixels around a text.
        largest: size of the letters at a large box.
    """

    def __init__(
        self, size: tuple[int, int], boxes: Sequence[Rectangle], *, pad: int, largest: int
    ) -> None:
        self._size, self._pad, self._largest = size, pad, largest
        every = np.array(boxes, np.int64).reshape(-1, 4)
        area = (every[:, 2] - every[:, 0] + 1) * (every[:, 3] - every[:, 1] + 1)
        # A label is about as wide as four letters are high.
        label = _LETTERS_OF_FULL_SIZE * largest**2
        small = (area < label / _HIDDEN_PART) & (area < _PICTURE_PART * size[0] * size[1])
        self._small = every[small]
        self.placed: list[Label] = []

    def place(self, corners: Rectangle, text: str, color: Color) -> None:
        """Places a label at a box; where it would hide a small object anywhere, there is none."""
        side = min(corners[2] - corners[0], corners[3] - corners[1])
        part = min(max(side / (_LETTERS_OF_FULL_SIZE * self._largest), _LEAST_PART), 1)
        size = max(round(self._largest * part), _SMALLEST)
        text = clipped(text, size, self._size[0] - 2 * self._pad)
        width = round(text_width(text, size)) + 2 * self._pad
        height = round(1.25 * size) + self._pad
        places = np.array(list(self._places(corners, width, height)))
        hidden = _shared(places, self._small)
        taken = _shared(places, np.array([one.place for one in self.placed]).reshape(-1, 4))
        # Of equally good places, the first.
        best = np.lexsort((taken, hidden))[0]
        if hidden[best]:
            return
        left, top, right, bottom = map(int, places[best])
        self.placed.append(
            Label(
                place=(left, top, right, bottom),
                text=text,
                color=color,
                size=size,
                leader=_leader((left, top, right, bottom), corners),
            )
        )

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
    """Returns the font; smaller where the text is wider than estimated."""
    font = load_font(label.size, label.text)
    length = font.getlength(label.text)
    if length <= width:
        return font
    return load_font(max(int(label.size * width / length), 6), label.text)


def _shared(places: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the number of pixels that each place, `[P, 4]`, shares with others, `[O, 4]`."""
    low = np.maximum(places[:, None, :2], others[None, :, :2])
    high = np.minimum(places[:, None, 2:], others[None, :, 2:])
    shared: NDArray[np.int64] = np.maximum(high - low, 0).prod(axis=2).sum(axis=1)
    return shared


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
