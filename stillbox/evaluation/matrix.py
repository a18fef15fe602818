"""The confusion matrix as SVG: sharp at any size, with the browser's fonts."""

import numpy as np

from stillbox.evaluation.confusion import Confusion
from stillbox.evaluation.fonts import clipped, text_width
from stillbox.printing import count_text, html_text

_NAME_WIDTH = 150


def matrix_svg(confusion: Confusion, names: dict[int, str]) -> str:
    """Returns the matrix, without classes that have neither objects nor detections.

    A cell is darker the greater its share of the objects of its row is.
    """
    counts = confusion.counts
    used = counts.sum(axis=0) + counts.sum(axis=1)
    used[-1] = 1
    places = np.flatnonzero(used).tolist()
    shown = counts[np.ix_(places, places)]
    cell = min(46, max(16, 700 // len(places)))
    size = min(13, max(9, round(cell * 0.6)))
    texts = [clipped(names[confusion.class_ids[at]], size, _NAME_WIDTH) for at in places[:-1]]
    margin = round(max(text_width(text, size) for text in ("background", *texts))) + 26
    parts = [_names(texts, margin, cell, size)]
    full = [names[confusion.class_ids[at]] for at in places[:-1]]
    for row, counted in enumerate(shown.tolist()):
        total = sum(counted)
        for column, count in enumerate(counted):
            if count:
                about = _about(full, row, column, count, total)
                correct = row == column
                x, y = margin + column * cell, margin + row * cell
                parts.append(_cell(x, y, cell, count, count / total, about, correct=correct))
    side = margin + len(places) * cell + 8
    return (
        f'<svg class="wide" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" '
        f'width="{side}" height="{side}" font-size="{size}" role="img" '
        f'aria-label="Confusion matrix: rows are objects, columns are detections">'
        f"{''.join(parts)}</svg>"
    )


def _names(texts: list[str], margin: int, cell: int, size: int) -> str:
    side = margin + (len(texts) + 1) * cell
    parts = [
        f'<text x="4" y="{margin - 8}" fill="var(--muted)">object &#8595; detection &#8594;</text>'
        if margin > 130
        else ""
    ]
    for place in range(len(texts) + 2):
        at = margin + place * cell
        rule = f'<line stroke="var(--line)" stroke-width="{2 if place > len(texts) else 1}" '
        parts.append(f'{rule}x1="{margin}" y1="{at}" x2="{side}" y2="{at}"/>')
        parts.append(f'{rule}x1="{at}" y1="{margin}" x2="{at}" y2="{side}"/>')
    for place, text in enumerate([*texts, None]):
        line = f"{margin + (place + 0.5) * cell + size / 3:.0f}"
        row, column = text or "background", text or "missed"
        start = '<text fill="var(--ink)"'
        parts.append(
            f'{start} text-anchor="end" x="{margin - 6}" y="{line}">{html_text(row)}</text>'
            f'{start} transform="translate({line} {margin - 6}) rotate(-90)">'
            f"{html_text(column)}</text>"
        )
    return "".join(parts)


def _about(full: list[str], row: int, column: int, count: int, total: int) -> str:
    if row == len(full):
        return f"{count_text(count, 'detection')} of {full[column]} without an object"
    what = "missed" if column == len(full) else f"found as {full[column]}"
    return f"{count:,} of {count_text(total, 'object')} of {full[row]} {what}, {count / total:.0%}"


def _cell(x: int, y: int, cell: int, count: int, share: float, about: str, *, correct: bool) -> str:
    color = "--good" if correct else "--bad"
    # As many digits as fit.
    size = min(13.0, 1.5 * cell / max(len(str(count)), 2))
    return (
        f'<g><title>{html_text(about)}</title><rect x="{x}" y="{y}" width="{cell}" '
        f'height="{cell}" fill="var({color})" fill-opacity="{0.12 + 0.6 * share:.2f}"/>'
        f'<text fill="var(--ink)" text-anchor="middle" font-size="{size:.1f}" x="{x + cell / 2}" '
        f'y="{y + cell / 2 + size / 3:.1f}">{count}</text></g>'
    )
