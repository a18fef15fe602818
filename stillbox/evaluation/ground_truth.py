"""Ground truth for scoring, from the records or a COCO file, and its agreement with the model.

The boxes refer to the original image. The loader is not used: it resizes, cuts off boxes beyond its
limit and gives crowds a weight.

Label map, model and annotations must have the same classes: a wrong label map would give low scores
without an error. One message lists all differences.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.coco import by_record
from stillbox.evaluation.results import ImageTruth
from stillbox.experiment import schema
from stillbox.printing import count_text
from stillbox.records.example import Example
from stillbox.records.image_files import stored_size
from stillbox.records.label_map import ClassSlots, LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.source import ExampleSource, spread_indices
from stillbox.references import Setting

_SHOWN = 5


def check_agreement(
    truths: Sequence[ImageTruth],
    class_names: Mapping[int, str],
    *,
    slots: ClassSlots,
    other_names: Mapping[int, str] | None = None,
) -> tuple[str, ...]:
    """Checks that the ground truth can be scored with this label map and this model.

    `class_names` has the label map's names by id; `other_names` are from another source, if any:
    the label map that the model was trained with, or the categories of a COCO file. Returns
    warnings about oddities that do not prevent scoring.

    Raises:
        UserError: they disagree; the message lists every point.
    """
    problems = [
        *_unknown_ids(truths, class_names),
        *_model_too_small(class_names, slots),
        *_different_names(class_names, other_names or {}),
    ]
    if problems:
        raise UserError(
            "label map, model and annotations disagree:" + "".join(f"\n  - {p}" for p in problems),
            fix="score with the label map that both the records and the model were made with",
        )
    return tuple(_oddities(truths, class_names, slots))


def listing(names: Sequence[str], limit: int = _SHOWN) -> str:
    """Returns the first names and the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _unknown_ids(truths: Sequence[ImageTruth], class_names: Mapping[int, str]) -> list[str]:
    boxes: Counter[int] = Counter()
    first: dict[int, str] = {}
    for truth in truths:
        for class_id in truth.class_ids.tolist():
            boxes[class_id] += 1
            first.setdefault(class_id, truth.image_id)
    lines = [
        f"class id {i} of {count_text(boxes[i], 'box')} (first in image {first[i]!r}) is not in "
        "the label map"
        for i in sorted(boxes.keys() - class_names.keys())
    ]
    return _cut(lines)


def _model_too_small(class_names: Mapping[int, str], slots: ClassSlots) -> list[str]:
    beyond = [
        f"{i} ({name})"
        for i, name in sorted(class_names.items())
        if i not in slots and (i, name) != (0, "background")
    ]
    if not beyond:
        return []
    return [
        f"the model has {count_text(len(slots), 'class')} and can only find ids {slots}, but the "
        f"label map also has {listing(beyond)}"
    ]


def _different_names(class_names: Mapping[int, str], other_names: Mapping[int, str]) -> list[str]:
    lines = [
        f"class id {i} is {class_names[i]!r} in the label map and {other_names[i]!r} elsewhere"
        for i in sorted(class_names.keys() & other_names.keys())
        if class_names[i] != other_names[i]
    ]
    return _cut(lines)


def _cut(lines: list[str]) -> list[str]:
    hidden = len(lines) - _SHOWN
    return lines[:_SHOWN] + [f"and {hidden} more class ids like these"] * (hidden > 0)


def _oddities(
    truths: Sequence[ImageTruth], class_names: Mapping[int, str], slots: ClassSlots
) -> list[str]:
    warnings = []
    largest = max(class_names, default=0)
    beyond = tuple(class_id for class_id in slots.ids if class_id > largest)
    if beyond:
        warnings.append(
            f"the model has {count_text(len(slots), 'class')}, the label map ends at id {largest}: "
            f"what it finds of ids {ClassSlots(beyond)} is not scored"
        )
    seen = {class_id for truth in truths for class_id in truth.class_ids.tolist()}
    absent = [name for i, name in sorted(class_names.items()) if i not in seen]
    if absent:
        warnings.append(f"no ground truth of {listing(absent)}: left out of the means")
    return warnings


_FIX = (
    "give the file that the records were made from, or "
    f"{Setting('data.evaluation.annotations', '')} to take the records' own boxes"
)


@dataclass(frozen=True)
class Annotations:
    """A ground-truth file, by image."""

    path: str
    truths: dict[str, ImageTruth]
    """Every image of the file by the id that its record has."""
    class_names: dict[int, str]
    """Category id -> name."""

    def refuse_missing(self, image_ids: Sequence[str]) -> None:
        """Checks that the file has these images of the records.

        Raises:
            UserError: the file lacks some.
        """
        missing = [image_id for image_id in image_ids if self._find(image_id) is None]
        if missing:
            problem = (
                f"the file has no image with the id {listing(missing, 3)}, which the evaluation "
                "records have"
            )
            raise UserError(problem, where=self.path, fix=_FIX)

    def truth_of(self, image_id: str, size: tuple[int, int]) -> ImageTruth:
        """Returns the ground truth of an image that the file has; `size` is (height, width).

        Raises:
            UserError: the image has another size in the file.
        """
        truth = self._find(image_id)
        assert truth is not None
        if size != (truth.height, truth.width):
            problem = (
                f"image {image_id} is {truth.height}x{truth.width} (height x width) in the file "
                f"and {size[0]}x{size[1]} in the records, so that its boxes do not fit"
            )
            raise UserError(problem, where=self.path, fix=_FIX)
        return truth

    def _find(self, image_id: str) -> ImageTruth | None:
        # Some writers pad the id with zeros, as in COCO's file names; the id itself can be 0.
        return self.truths.get(image_id) or self.truths.get(image_id.lstrip("0") or image_id[-1:])


def read_annotations(path: str) -> Annotations:
    """Reads a ground-truth file.

    Raises:
        UserError: there is no such file, or it is no COCO ground truth.
    """
    truths, class_names = by_record(path)
    return Annotations(path, truths, class_names)


class TruthSource(Protocol):
    """The examples of an evaluation set, such as `records.source.ExampleSource`."""

    def __len__(self) -> int: ...

    def example(self, index: int, /) -> Example | None:
        """Returns the example of a record, None if the policy leaves it out."""
        ...


def read_truths(
    source: TruthSource, records: Sequence[int], annotations: Annotations | None = None
) -> dict[int, ImageTruth]:
    """Returns ground truth by record index, from the records or from `annotations`.

    Records that the source leaves out under its policy are absent. The record's number is added to
    ids that several records share.

    Raises:
        UserError: `annotations` lacks an image, or has one of another size.
    """
    # Threads, because records may be in a slow place. No list: an example has its encoded image.
    present = ordered_map(lambda record: (record, source.example(record)), records)
    if annotations is None:
        truths = {record: truth_of(example) for record, example in present if example is not None}
    else:
        images = {
            record: (example.image_id, stored_size(example))
            for record, example in present
            if example is not None
        }
        annotations.refuse_missing([image_id for image_id, _ in images.values()])
        truths = {record: annotations.truth_of(*image) for record, image in images.items()}
    owners = Counter(truth.image_id for truth in truths.values())
    return {
        record: truth
        if owners[truth.image_id] == 1
        else replace(truth, image_id=f"{truth.image_id} (record {record})")
        for record, truth in truths.items()
    }


def truth_of(example: Example) -> ImageTruth:
    """Returns the ground truth of an example in pixels of its stored image."""
    height, width = stored_size(example)
    scale = np.array([height, width, height, width], np.float64)
    return ImageTruth(
        image_id=example.image_id,
        height=height,
        width=width,
        boxes=example.boxes.astype(np.float64) * scale,
        class_ids=example.class_ids.astype(np.int64),
        is_crowd=example.is_crowd,
        is_difficult=example.difficult,
        area=example.area.astype(np.float64),
    )


SAMPLE = 2000
"""Records that are read of a set, unless all are asked for."""


class SampledTruths(NamedTuple):
    """The ground truth of some records of a set, spread over it."""

    truths: tuple[ImageTruth, ...]
    class_names: Mapping[int, str]
    """Label map id -> name; empty: there is no label map."""
    read: int
    """Records that were read, those without a usable image too."""
    total: int
    """Records of the set."""


def read_sample(records: schema.Records, limit: int = SAMPLE) -> SampledTruths:
    """Reads the boxes of at most `limit` records, 0: of all; no image is decoded.

    Raises:
        UserError: there are no records, or the label map cannot be read.
    """
    label_map = LabelMap.from_file(records.label_map) if records.label_map else None
    source = ExampleSource(
        records.paths, label_map, use_display_name=records.use_display_name, bad_records="drop"
    )
    indices = spread_indices(len(source), limit)
    truths = tuple(read_truths(source, indices).values())
    return SampledTruths(truths, label_map.names if label_map else {}, len(indices), len(source))
