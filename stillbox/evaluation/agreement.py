"""Checks that label map, model and annotations have the same classes.

A label map that does not belong to the records gives low scores without an error. Everything that
disagrees is listed in one message.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from stillbox.errors import UserError
from stillbox.evaluation.results import ImageTruth
from stillbox.printing import count_text
from stillbox.records.class_slots import ClassSlots

_SHOWN = 5


def check_agreement(
    truths: Sequence[ImageTruth],
    class_names: Mapping[int, str],
    *,
    slots: ClassSlots,
    other_names: Mapping[int, str] | None = None,
) -> tuple[str, ...]:
    """Checks that the ground truth can be scored with this label map and this model.

    `class_names` are those of the label map by id; `other_names` are from another source, if any:
    the label map that the model was trained with, or the categories of a COCO file.

    Returns:
        Warnings about oddities that do not prevent scoring.

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
