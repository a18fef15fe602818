"""The annotations of a set as a whole, before any image is converted.

Images that are not there are named with the most similar name. An image that is annotated in two
places becomes one example. The numbers of the boxes are read as `box_numbers` recognises them, and
a box that stands twice in an image is kept once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage, only_boxes
from stillbox.records.box_numbers import BoxNumbers, read_numbers
from stillbox.records.data_folder import DataFolder, Split
from stillbox.records.example import first_equal, format_box
from stillbox.records.problems import ConversionLog


class Stated(NamedTuple):
    """An annotated image and the split that its data set states."""

    item: AnnotatedImage
    split: Split | None = None


def review(
    stated: Iterable[Stated],
    data: DataFolder,
    numbers: BoxNumbers,
    log: ConversionLog,
    chosen: BoxNumbers | None = None,
) -> list[Stated]:
    """Returns the images that are there, each once, with boxes as they are meant.

    Args:
        data: the folder of the images.
        numbers: unit and layout of the format.
        chosen: unit and layout, if the user has said them.

    Raises:
        UserError: none of the images is there, the numbers of the boxes are not clear, or a policy
            is `fail`.
    """
    there = _merged(_present(list(stated), data, log), log)
    splits = [image.split for image in there]
    items = read_numbers([image.item for image in there], splits, numbers, log, chosen)
    items = [_distinct(item, log) for item in items]
    return [Stated(*pair) for pair in zip(items, splits, strict=True)]


def report_without_annotation(
    items: Iterable[AnnotatedImage], data: DataFolder, log: ConversionLog
) -> None:
    """Reports the images of a folder that no annotation names."""
    named = {item.path for item in items}
    for path in data.images:
        if path not in named and path not in data.used:
            log.add("image without annotation", data.relative(path), action="left out")


def _present(stated: Sequence[Stated], data: DataFolder, log: ConversionLog) -> list[Stated]:
    """Leaves out the images that are not there; names what is similar for the first of them.

    A folder without any image is left to the conversion.
    """
    if not data.images:
        return list(stated)
    there: list[Stated] = []
    absent: list[Stated] = []
    for image in stated:
        # os.path: no error for a name that is too long for a file.
        is_there = image.item.stored is not None or data.has(image.item.path)
        (there if is_there else absent).append(image)
    if absent and not there:
        first = absent[0].item
        raise UserError(
            f"of {count_text(len(absent), 'image')} of the annotations none is there and can be "
            f"read; the first is {first.path.name}, and {data.nearest_name(first.path)}",
            where=first.where,
            fix="put the images into the folder, with the names that the annotations have",
        )
    reason = "image file is missing"
    for item, _ in absent:
        near = "" if log.has_enough(reason) else f"; {data.nearest_name(item.path)}"
        log.bad_record(reason, item.where, f"{item.path}{near}")
    return there


def _merged(stated: Sequence[Stated], log: ConversionLog) -> list[Stated]:
    """Joins the annotations of an image that stand in several places of a split."""
    places: dict[tuple[Path, Split | None], list[AnnotatedImage]] = defaultdict(list)
    for place, (item, split) in enumerate(stated):
        key = item.path if item.stored is None else Path(str(place))
        places[key, split].append(item)
    result = []
    for (_, split), items in places.items():
        for other in items[1:]:
            reason = "image annotated in several places"
            log.add(reason, other.where, f"also {items[0].where}", action="boxes joined")
        result.append(Stated(_joined(items) if len(items) > 1 else items[0], split))
    return result


_OPTIONAL = ("is_crowd", "difficult", "truncated", "area")


def _joined(items: Sequence[AnnotatedImage]) -> AnnotatedImage:
    """Returns the first item with the boxes of all."""
    sizes = ((item.height, item.width) for item in items)
    size = next((size for size in sizes if min(size) > 0), (0, 0))
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(item, name) for item in items])
        for name in _OPTIONAL
        # A column that a part does not have is left out.
        if all(len(getattr(item, name)) == len(item.pixel_boxes) for item in items)
    }
    starts = np.cumsum([0, *(len(item.pixel_boxes) for item in items)]).tolist()
    unknown = {
        start + row: name
        for start, item in zip(starts, items, strict=False)
        for row, name in item.unknown.items()
    }
    return replace(
        items[0],
        height=size[0],
        width=size[1],
        pixel_boxes=np.concatenate([_in_size(item, size) for item in items]),
        class_ids=np.concatenate([item.class_ids for item in items]),
        unknown=unknown,
        **columns,
    )


def _in_size(item: AnnotatedImage, size: tuple[int, int]) -> np.ndarray:
    """Returns the boxes `[N, 4]` in pixels of a size, if the item claims another one."""
    if item.relative or min(item.height, item.width) <= 0:
        return item.pixel_boxes
    return item.pixel_boxes * np.tile(np.divide(size, (item.height, item.width)), 2)


def _distinct(item: AnnotatedImage, log: ConversionLog) -> AnnotatedImage:
    """Keeps each box of a class once."""
    names = [item.unknown.get(n, class_id) for n, class_id in enumerate(item.class_ids.tolist())]
    first = first_equal(names, item.pixel_boxes)
    for row, count in Counter(first).items():
        if count > 1:
            detail = f"{count} x {format_box(item.pixel_boxes[row])}"
            log.add("the same box again", f"{item.where}, box {row}", detail, action="kept once")
    return only_boxes(item, np.array(first) == np.arange(len(first)))
