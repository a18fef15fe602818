"""Images with boxes as SVG: the browser supplies the glyphs of all scripts."""

import base64
from collections.abc import Sequence

import numpy as np
from PIL import Image

from stillbox.evaluation.palette import css, text_color
from stillbox.evaluation.pictures import (
    Mark,
    Picture,
    enlargement,
    line_width,
    picture_bytes,
    place_labels,
)
from stillbox.printing import html_text


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
        _panel(
            key,
            shared if number == 0 else "",
            (width, height),
            caption,
            marks,
            factor,
            labels=labels,
        )
        for number, (caption, marks) in enumerate(panels)
    ]


def _panel(
    key: str,
    shared: str,
    size: tuple[int, int],
    caption: str,
    marks: Sequence[Mark],
    factor: int,
    *,
    labels: bool,
) -> str:
    width, height = size
    boxes = "".join(_box(mark, factor) for mark in marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html_text(caption)}">{shared}<use href="#{key}"/>{boxes}'
        f"{_labels(marks, size, factor) if labels else ''}</svg>"
    )


def _box(mark: Mark, factor: int) -> str:
    """Returns an outline of two pixels of the screen, however large the image is shown."""
    ymin, xmin, ymax, xmax = (factor * side for side in mark.box)
    dashes = ' stroke-dasharray="7"' if mark.dashed else ""
    place = (
        f'x="{xmin:.1f}" y="{ymin:.1f}" width="{max(xmax - xmin, 0):.1f}" '
        f'height="{max(ymax - ymin, 0):.1f}" fill="none" vector-effect="non-scaling-stroke"{dashes}'
    )
    # The dark rim contrasts with grounds of the box's colour.
    return (
        f"<g><title>{html_text(mark.text)}</title>"
        f'<rect {place} stroke="#000" stroke-opacity="0.6" stroke-width="4"/>'
        f'<rect {place} stroke="{css(mark.color)}" stroke-width="2"/></g>'
    )


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
