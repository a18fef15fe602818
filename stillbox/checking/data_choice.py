"""Chooses the images of a data set that tell most about its boxes as stored."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.checking.data_content import DataContent, Integers, Numbers
from stillbox.printing import count_text
from stillbox.records import example as rules

_CANDIDATES = 96
"""Images that are returned; some of them may be unreadable."""
_FIRST, _FULLEST, _SMALLEST, _LARGEST, _WHOLE, _RARE = 3, 3, 3, 2, 2, 4
"""Images of each kind."""
_WHOLE_FROM = 0.95
"""Share of the image that a nearly whole-image box covers."""
_COMPARED = 1000
"""Boxes among which boxes of different images are taken."""
_ROUNDING = 1e-4


class Reason(NamedTuple):
    """Why an image is shown."""

    text: str
    box: int = -1
    """The box that the text is about, by its number in the image."""


Choice = Iterator[tuple[int, Reason]]


@np.errstate(over="ignore", invalid="ignore")
def choose(content: DataContent) -> dict[int, list[Reason]]:
    """Returns images in the order in which they are shown, each with the reasons.

    The same content gives the same images. Those behind the telling ones are spread evenly.
    """
    chosen: dict[int, list[Reason]] = defaultdict(list)
    for kind in (_first, _faulty, _fullest, _extreme, _rare):
        for image, reason in kind(content):
            chosen[image].append(reason)
    images = len(content.splits)
    for image in np.linspace(0, images - 1, min(images, _CANDIDATES)).astype(int).tolist():
        if image not in chosen:
            chosen[image].append(Reason(f"image {image + 1:,} of {images:,}"))
    return dict(chosen)


def _first(content: DataContent) -> Choice:
    for image in range(min(_FIRST, len(content.splits))):
        yield image, Reason("first")


def _faulty(content: DataContent) -> Choice:
    for reason, mask in _faults(content).items():
        for box in np.flatnonzero(mask)[:1]:
            yield _of_box(content, box, f"{reason} ({int(mask.sum()):,} in all)")


def _faults(content: DataContent) -> dict[str, NDArray[np.bool_]]:
    """Returns the boxes with each fault of `apply_box_policy`, `[N]`."""
    low, high = content.boxes[:, :2], content.boxes[:, 2:]
    away = ((high <= 0) | (low >= 1)).any(axis=1)
    beyond = (low < -_ROUNDING).any(axis=1) | (high > 1 + _ROUNDING).any(axis=1)
    return {
        rules.UNKNOWN_CLASS: content.class_ids == 0,
        rules.NOT_A_NUMBER: ~np.isfinite(content.stored).all(axis=1),
        rules.INVERTED: (low > high).any(axis=1),
        rules.NO_AREA: (low == high).any(axis=1),
        rules.WHOLLY_OUTSIDE: away,
        rules.OUTSIDE: beyond & ~away,
    }


def _fullest(content: DataContent) -> Choice:
    counts = content.counts
    keys = np.where(counts > 1, -counts, np.inf)
    for rank, image in enumerate(_least(keys, np.arange(len(counts)), _FULLEST)):
        yield image, Reason(f"{'many' if rank else 'most'} boxes: {counts[image]:,}")
    for image in np.flatnonzero(counts == 0)[:1].tolist():
        yield image, Reason("without a box")


def _extreme(content: DataContent) -> Choice:
    sides, corners = content.sides, content.boxes.clip(0, 1)
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    # Comparisons with NaN are false.
    small = np.where(sides > 0, sides, np.inf)
    for rank, box in enumerate(_least(small, content.image_of, _SMALLEST)):
        yield _of_box(content, box, "small box" if rank else "smallest box")
    large = np.where(areas < _WHOLE_FROM, -areas, np.inf)
    for rank, box in enumerate(_least(large, content.image_of, _LARGEST)):
        yield _of_box(content, box, "large box" if rank else "largest box")
    whole = np.where(areas >= _WHOLE_FROM, -areas, np.inf)
    for box in _least(whole, content.image_of, _WHOLE):
        yield _of_box(content, box, f"covers {areas[box]:.0%} of the image")


def _rare(content: DataContent) -> Choice:
    """Yields an image of each of the rarest classes, of half of the classes at most."""
    rarest_first = list(content.class_counts.items())[::-1]
    for class_id, count in rarest_first[: min(_RARE, len(rarest_first) // 2)]:
        box = int(np.argmax(content.class_ids == class_id))
        text = f"rare class {content.name_of(class_id)!r}, {count_text(count, 'box')}"
        yield _of_box(content, box, text)


def _of_box(content: DataContent, box: int, text: str) -> tuple[int, Reason]:
    image = content.image_of[box]
    return int(image), Reason(text, int(box - np.searchsorted(content.image_of, image)))


def _least(keys: Numbers, image_of: Integers, count: int) -> list[int]:
    """Returns the places of the least finite keys, one of an image at most, `count` at most."""
    if not len(keys):
        return []
    limit = np.partition(keys, min(_COMPARED, len(keys)) - 1)[min(_COMPARED, len(keys)) - 1]
    places = np.flatnonzero((keys <= limit) & np.isfinite(keys))
    places = places[np.argsort(keys[places], kind="stable")][:_COMPARED]
    _, first = np.unique(image_of[places], return_index=True)
    least: list[int] = places[np.sort(first)[:count]].tolist()
    return least
