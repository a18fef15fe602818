"""Draws boxes on images, as pixels or as SVG, and arranges images.

Images are uint8 RGB `[H, W, 3]`. In an SVG the browser supplies the glyphs of all scripts.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from stillbox.errors import UserError
from stillbox.evaluation.drawing import (
    Color,
    Label,
    Labels,
    class_color,
    clipped,
    css,
    draw_labels,
    has_glyphs,
    load_font,
    text_color,
)
from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.printing import html_text
from stillbox.records.files import write_whole

Picture = NDArray[np.uint8]

LEAST_SIDE = 420
"""Images with a shorter longest side are enlarged first, so that labels fit."""

_INK: Color = (33, 37, 41)
_PAPER: Color = (255, 255, 255)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One box to draw."""

    box: Sequence[float]
    """`ymin, xmin, ymax, xmax` in pixels of the image."""
    text: str
    color: Color
    """RGB of outline and label."""
    plain: str = ""
    """The label where no font has the glyphs of `text`; empty: none."""
    dashed: bool = False
    ring: float = 0
    """Radius of a ring around a box that is too small to be seen, in pixels of the image."""

    @property
    def outer(self) -> Sequence[float]:
        """The box, or the square around the ring."""
        if not self.ring:
            return self.box
        ymin, xmin, ymax, xmax = self.box
        y, x = (ymin + ymax) / 2, (xmin + xmax) / 2
        return (y - self.ring, x - self.ring, y + self.ring, x + self.ring)


def truth_marks(
    truth: ImageTruth,
    class_names: Mapping[int, str],
    *,
    show_labels: bool = True,
    color: Color | None = None,
) -> list[Mark]:
    """Returns a mark for every ground-truth box, in `color` or its class's; crowds dashed."""
    columns = (truth.boxes, truth.class_ids, truth.is_crowd, truth.is_difficult)
    marks = []
    for box, class_id, crowd, difficult in zip(*(c.tolist() for c in columns), strict=True):
        name = class_names.get(class_id, f"class {class_id}")
        more = f"{' (crowd)' * crowd}{' (difficult)' * difficult}"
        text, plain = (f"{label}{more}" * show_labels for label in (name, f"class {class_id}"))
        color_of_box = color or class_color(class_id)
        marks.append(Mark(box=box, text=text, plain=plain, color=color_of_box, dashed=crowd))
    return marks


def result_marks(
    result: ImageResult,
    class_names: Mapping[int, str],
    *,
    min_score: float = 0.5,
    max_boxes: int = 20,
    show_labels: bool = True,
    show_scores: bool = True,
) -> list[Mark]:
    """Returns a mark for each of the best detections, the best one last, thus on top."""
    best = result.at_least(min_score, max_boxes)
    columns = (best.boxes, best.class_ids, best.scores)
    marks = []
    for box, class_id, score in zip(*(c.tolist() for c in columns), strict=True):
        name = class_names.get(class_id, f"class {class_id}")
        text, plain = (
            " ".join([label] * show_labels + [f"{score:.2f}"] * show_scores)
            for label in (name, f"class {class_id}")
        )
        marks.append(Mark(box=box, text=text, plain=plain, color=class_color(class_id)))
    return marks[::-1]


def draw_marks(image: Picture, marks: Sequence[Mark]) -> Picture:
    """Returns a copy of the image with boxes and labels, enlarged if it is small.

    Line width and text size grow with the image, text size also with the box. A label lies within
    the image, close to its box, where it hides no small object and overlaps other labels least. If
    no font has all glyphs of a text, the mark's plain text is drawn.
    """
    canvas, factor = _enlarged(image)
    draw = ImageDraw.Draw(canvas)
    line = line_width(canvas.size)
    scaled = [(mark, _clip_box(mark.box, factor, canvas.size)) for mark in marks]
    for mark, corners in scaled:
        _draw_outline(draw, corners, line, mark)
        if mark.ring:
            ymin, xmin, ymax, xmax = (factor * side for side in mark.outer)
            draw.ellipse((xmin, ymin, xmax, ymax), outline=mark.color, width=line)
    # Labels last: no outline crosses a text.
    texts = [mark.text if has_glyphs(mark.text) else mark.plain for mark in marks]
    labels = place_labels(marks, texts, canvas.size, factor=factor)
    draw_labels(draw, labels, pad=line + 1)
    return np.asarray(canvas)


def enlargement(size: tuple[int, int]) -> int:
    """Returns how many times an image of this width and height is enlarged to be drawn on."""
    return max(1, -(-LEAST_SIDE // max(size)))


def line_width(size: tuple[int, int]) -> int:
    """Returns the width of outlines in an image of this width and height, in pixels."""
    return max(2, round(max(size) / 320))


def place_labels(
    marks: Sequence[Mark], texts: Sequence[str], size: tuple[int, int], *, factor: int = 1
) -> list[Label]:
    """Returns the labels of marks, in the pixels of an image enlarged by `factor` to `size`."""
    boxes = [_clip_box(mark.outer, factor, size) for mark in marks]
    largest = min(32, max(14, round(max(size) / 36)))
    labels = Labels(size, boxes, pad=line_width(size) + 1, largest=largest)
    # The last mark lies on top: it is the most important.
    for mark, box, text in reversed(list(zip(marks, boxes, texts, strict=True))):
        if line := " ".join(text.split()):
            labels.place(box, line, mark.color)
    return labels.placed


def beside(pictures: Sequence[Picture], captions: Sequence[str]) -> Picture:
    """Returns pictures of one height in a row on white, each under its caption."""
    height = max(picture.shape[0] for picture in pictures)
    gap = max(6, height // 50)
    font = load_font(min(28, max(15, pictures[0].shape[1] // 24)))
    band = round(font.size * 1.7)
    width = sum(picture.shape[1] for picture in pictures) + gap * (len(pictures) - 1)
    page = Image.new("RGB", (width, height + band), _PAPER)
    draw = ImageDraw.Draw(page)
    left = 0
    for picture, caption in zip(pictures, captions, strict=True):
        text = clipped(caption, round(font.size), picture.shape[1])
        draw.text((left + 2, band / 2), text, fill=_INK, font=font, anchor="lm")
        page.paste(Image.fromarray(picture), (left, band))
        left += picture.shape[1] + gap
    return np.asarray(page)


def contact_sheet(
    pictures: Sequence[Picture], *, columns: int = 4, cell: int = 360, gap: int = 8
) -> Picture:
    """Returns the pictures, at least one, in a grid on white, row by row.

    Pictures are shrunk to `cell` pixels of their longest side, with `gap` pixels around them.
    """
    tiles = [Image.fromarray(picture) for picture in pictures]
    for tile in tiles:
        tile.thumbnail((cell, cell), Image.Resampling.LANCZOS)
    columns = min(columns, len(tiles))
    rows = [tiles[first : first + columns] for first in range(0, len(tiles), columns)]
    height = gap + sum(max(tile.height for tile in row) + gap for row in rows)
    page = Image.new("RGB", (columns * (cell + gap) + gap, height), _PAPER)
    top = gap
    for row in rows:
        tallest = max(tile.height for tile in row)
        for column, tile in enumerate(row):
            left = gap + column * (cell + gap) + (cell - tile.width) // 2
            page.paste(tile, (left, top + (tallest - tile.height) // 2))
        top += tallest + gap
    return np.asarray(page)


def picture_bytes(picture: Picture, image_format: Literal["PNG", "JPEG"]) -> bytes:
    """Returns the picture as the content of a file."""
    buffer = io.BytesIO()
    # Level 1 takes a third of the time of the default, for files that are a tenth larger.
    Image.fromarray(picture).save(buffer, format=image_format, quality=88, compress_level=1)
    return buffer.getvalue()


def save_picture(picture: Picture, path: str | Path, *, below: Path | None = None) -> Path:
    """Writes a PNG or JPEG, by the ending of the name; for `below` see `write_whole`.

    Raises:
        UserError: another ending, or the folder cannot be written to.
    """
    path = Path(path)
    formats: dict[str, Literal["PNG", "JPEG"]] = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
    image_format = formats.get(path.suffix.lower())
    if image_format is None:
        problem = f"no picture format has the ending {path.suffix!r}"
        raise UserError(problem, where=str(path), fix="use .png, .jpg or .jpeg")
    return write_whole(path, picture_bytes(picture, image_format), below=below)


def _enlarged(image: Picture) -> tuple[Image.Image, int]:
    canvas = Image.fromarray(image)
    factor = enlargement(canvas.size)
    if factor > 1:
        size = (canvas.width * factor, canvas.height * factor)
        canvas = canvas.resize(size, Image.Resampling.BICUBIC)
    return canvas, factor


def _clip_box(
    box: Sequence[float], factor: int, size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Returns left, top, right, bottom in whole pixels of the canvas, the last two included."""
    ymin, xmin, ymax, xmax = (round(value * factor) for value in box)
    left, top = min(max(xmin, 0), size[0] - 1), min(max(ymin, 0), size[1] - 1)
    return left, top, max(left, min(xmax, size[0]) - 1), max(top, min(ymax, size[1]) - 1)


def _draw_outline(
    draw: ImageDraw.ImageDraw, corners: tuple[int, int, int, int], line: int, mark: Mark
) -> None:
    left, top, right, bottom = corners
    if not mark.dashed:
        # The dark rim contrasts with grounds of the box's colour.
        draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_INK, width=line + 2)
        draw.rectangle(corners, outline=mark.color, width=line)
        return
    dash = 4 * line
    for x in range(left, right, 2 * dash):
        for y in (top, max(top, bottom - line + 1)):
            draw.rectangle((x, y, min(x + dash, right), y + line - 1), fill=mark.color)
    for y in range(top, bottom, 2 * dash):
        for x in (left, max(left, right - line + 1)):
            draw.rectangle((x, y, x + line - 1, min(y + dash, bottom)), fill=mark.color)


def panels_svg(
    key: str,
    image: Picture,
    panels: Sequence[tuple[str, Sequence[Mark]]],
    *,
    labels: bool = True,
    longest: int = 960,
) -> list[str]:
    """Returns one SVG for each panel, a caption and marks; the image is embedded once.

    `key` is unique on the page, `longest` the longer side of the embedded image in pixels.
    """
    pixels = Image.fromarray(image)
    pixels.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    data = base64.b64encode(picture_bytes(np.asarray(pixels), "JPEG")).decode("ascii")
    factor = enlargement((image.shape[1], image.shape[0]))
    height, width = factor * image.shape[0], factor * image.shape[1]
    shared = (
        f'<defs><image id="{key}" width="{width}" height="{height}" '
        f'href="data:image/jpeg;base64,{data}"/></defs>'
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html_text(caption)}">{"" if number else shared}<use href="#{key}"/>'
        f"{''.join(_box(mark, factor) for mark in marks)}"
        f"{_labels(marks, (width, height), factor) if labels else ''}</svg>"
        for number, (caption, marks) in enumerate(panels)
    ]


def _box(mark: Mark, factor: int) -> str:
    """Returns an outline of two pixels of the screen, however large the image is shown."""
    ymin, xmin, ymax, xmax = (factor * side for side in mark.box)
    dashes = ' stroke-dasharray="7"' if mark.dashed else ""
    shapes = [
        f'rect x="{xmin:.1f}" y="{ymin:.1f}" width="{max(xmax - xmin, 0):.1f}" '
        f'height="{max(ymax - ymin, 0):.1f}"'
    ]
    if mark.ring:
        middle = f'cx="{(xmin + xmax) / 2:.1f}" cy="{(ymin + ymax) / 2:.1f}"'
        shapes.append(f'circle {middle} r="{factor * mark.ring:.1f}"')
    style = f'fill="none" vector-effect="non-scaling-stroke"{dashes}'
    # The dark rim contrasts with grounds of the box's colour.
    drawn = "".join(
        f'<{shape} {style} stroke="#000" stroke-opacity="0.6" stroke-width="4"/>'
        f'<{shape} {style} stroke="{css(mark.color)}" stroke-width="2"/>'
        for shape in shapes
    )
    return f"<g><title>{html_text(mark.text)}</title>{drawn}</g>"


def _labels(marks: Sequence[Mark], size: tuple[int, int], factor: int) -> str:
    """Returns the labels, the most important last; `textLength` makes every font fit its place."""
    parts = []
    pad = line_width(size) + 1
    placed = place_labels(marks, [mark.text for mark in marks], size, factor=factor)
    for label in reversed(placed):
        left, top, right, bottom = label.place
        color = css(label.color)
        if label.leader:
            x, y, box_x, box_y = label.leader
            parts.append(
                f'<line x1="{x}" y1="{y}" x2="{box_x}" y2="{box_y}" stroke="{color}" '
                'stroke-width="2"/>'
            )
        parts.append(
            f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" '
            f'fill="{color}"/><text x="{left + pad}" y="{(top + bottom) / 2:.1f}" '
            f'font-size="{label.size}" dominant-baseline="central" '
            f'textLength="{right - left - 2 * pad}" lengthAdjust="spacingAndGlyphs" '
            f'fill="{css(text_color(label.color))}">{html_text(label.text)}</text>'
        )
    return "".join(parts)
