"""The images of a conversion or of records with their boxes as read, in columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.records.annotations import to_example
from stillbox.records.example import Example
from stillbox.records.folder import ConversionView
from stillbox.records.image_files import prepare_image
from stillbox.records.label_map import LabelMapItem
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError, Problem, ProblemLog
from stillbox.records.source import ExampleSource

_LONGEST = 60

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DataContent:
    """I images with N boxes, before any is repaired or dropped."""

    title: str
    subtitle: str
    class_names: Mapping[int, str]
    splits: Sequence[str]
    """`[I]`, `train`, `val`, `test`, or the name of the record file."""
    left_out: int
    """Further images: those in no split, or records that cannot be parsed."""
    sizes: Integers
    """`[I, 2]`, height and width in pixels; 0: not stated."""
    frames: Numbers
    """`[I, 2]`, height and width in the unit of the boxes; NaN: not stated."""
    stored: Numbers
    """`[N, 4]`, ymin, xmin, ymax, xmax."""
    class_ids: Integers
    """`[N]`, 0: unknown."""
    image_of: Integers
    """`[N]`, the image of each box, ascending."""
    problems: Sequence[Problem]
    pixels_possible: bool
    """See `apply_box_policy`."""
    load: Callable[[int], tuple[Example, Mapping[int, str]]]
    """Returns an image that can be decoded, with normalised boxes, and names of unknown classes.

    Raises `OSError`, `ValueError` or `UserError` if the image cannot be read.
    """

    @cached_property
    def boxes(self) -> Numbers:
        """The boxes, `[N, 4]`, normalised; NaN where the size is not stated."""
        with np.errstate(over="ignore"):
            return self.stored / np.tile(self.frames[self.image_of], 2)

    @cached_property
    def sides(self) -> Numbers:
        """The root of the area of each box, `[N]`, as a share of the root of the image's area."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.sqrt(np.abs(np.prod(self.boxes[:, 2:] - self.boxes[:, :2], axis=1)))

    @cached_property
    def counts(self) -> Integers:
        """The number of boxes of each image, `[I]`."""
        return np.bincount(self.image_of, minlength=len(self.splits))

    @cached_property
    def class_counts(self) -> dict[int, int]:
        """The number of boxes of each known class that has one, the most frequent class first."""
        ids, counts = np.unique(self.class_ids[self.class_ids > 0], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return dict(zip(ids[order].tolist(), counts[order].tolist(), strict=True))

    def name_of(self, class_id: int) -> str:
        """Returns the name of a class, shortened if it is long."""
        return short_text(self.class_names.get(class_id, f"class {class_id}"))


def short_text(text: str, longest: int = _LONGEST) -> str:
    """Returns a text, cut to a number of characters with dots at its end."""
    return text if len(text) <= longest else f"{text[:longest]}..."


def conversion_content(view: ConversionView) -> DataContent:
    """Returns the images of a conversion that are in a split."""
    kept = [(item, split) for item, split in zip(view.items, view.splits, strict=True) if split]
    items = [item for item, _ in kept]
    sizes = np.array([(item.height, item.width) for item in items], np.int64).reshape(-1, 2)
    relative = np.array([item.relative for item in items], np.bool_)[:, None]
    log = ProblemLog()
    log.extend(view.problems)

    def load(image: int) -> tuple[Example, Mapping[int, str]]:
        item = items[image]
        size = (item.height, item.width)
        prepared = prepare_image(item.content(), size, view.options.exif, view.brightest)
        return to_example(item, prepared, ProblemLog()), item.unknown

    return DataContent(
        title=f"Data: {view.folder}",
        subtitle=f"{view.title}; split: {view.split}",
        class_names=_names(view.label_map),
        splits=[split for _, split in kept],
        left_out=len(view.items) - len(items),
        sizes=sizes,
        frames=np.where(relative, 1.0, np.where(sizes > 0, sizes, np.nan)),
        problems=list(log),
        pixels_possible=False,
        load=load,
        **_columns([(item.pixel_boxes, item.class_ids) for item in items]),
    )


def records_content(source: ExampleSource, problems: Sequence[Problem]) -> DataContent:
    """Returns the images of records; those that cannot be parsed are left out."""
    numbered = enumerate(ordered_map(partial(_parse, source), range(len(source))))
    parsed = [(row, *content) for row, content in numbered if content is not None]
    rows = [row for row, *_ in parsed]

    def load(number: int) -> tuple[Example, Mapping[int, str]]:
        stored = source.parse(rows[number])
        example, size = stored.example, (stored.example.height, stored.example.width)
        image = prepare_image(example.encoded, size, "stored")
        return replace(
            example, encoded=image.encoded, height=image.height, width=image.width
        ), stored.unknown

    return DataContent(
        title=f"Records: {source.where}",
        subtitle="boxes as stored",
        class_names=_names(source.label_map or ()),
        splits=[Path(source.set_of(row)).name for row in rows],
        left_out=len(source) - len(rows),
        sizes=np.array([size for _, size, _, _ in parsed], np.int64).reshape(-1, 2),
        frames=np.ones((len(rows), 2)),
        problems=problems,
        pixels_possible=True,
        load=load,
        **_columns([(boxes, ids) for _, _, boxes, ids in parsed]),
    )


def _parse(
    source: ExampleSource, row: int
) -> tuple[tuple[int, int], NDArray[np.float32], NDArray[np.int32]] | None:
    """Returns size, boxes and class ids of a record; None if it cannot be parsed."""
    try:
        example = source.parse(row).example
    except (UserError, BadRecordError):
        return None
    return (example.height, example.width), example.boxes, example.class_ids


class _Columns(TypedDict):
    stored: Numbers
    class_ids: Integers
    image_of: Integers


def _columns(images: Sequence[tuple[NDArray, NDArray]]) -> _Columns:
    """Returns the columns of the boxes of images, each with its boxes and their class ids."""
    boxes = [np.zeros((0, 4)), *(boxes for boxes, _ in images)]
    class_ids = [np.zeros(0, np.int64), *(ids for _, ids in images)]
    return {
        "stored": np.concatenate(boxes, dtype=np.float64),
        "class_ids": np.concatenate(class_ids, dtype=np.int64),
        "image_of": np.repeat(np.arange(len(images)), [len(boxes) for boxes, _ in images]),
    }


def _names(label_map: Iterable[LabelMapItem]) -> dict[int, str]:
    return {item.id: item.display_name or item.name for item in label_map}
