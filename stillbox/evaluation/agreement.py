"""Refuses to score when label map, model and annotations speak of different classes.

A label map that does not belong to the records scores 0 or an AP of nothing, and nobody is told
why (fact sheet 7.6 and 7.7). Everything that disagrees is listed in one message.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from stillbox.errors import UserError
from stillbox.evaluation.results import ImageTruth
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

    Args:
        truths: the ground truth.
        class_names: label map id -> name.
        slots: classes that the model tells apart.
        other_names: id -> name from another source, where there is one: the label map that the
            model was trained with, or the categories of a COCO file.

    Returns:
        Warnings: what is odd but can be scored.

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


def _unknown_ids(truths: Sequence[ImageTruth], class_names: Mapping[int, str]) -> list[str]:
    boxes: Counter[int] = Counter()
    first: dict[int, str] = {}
    for truth in truths:
        for class_id in truth.class_ids.tolist():
            boxes[class_id] += 1
            first.setdefault(class_id, truth.image_id)
    unknown = sorted(set(boxes) - set(class_names))
    lines = [
        f"{boxes[i]} boxes have class id {i} (first in image {first[i]!r}), "
        "which the label map does not have"
        for i in unknown[:_SHOWN]
    ]
    return lines + _and_more(unknown)


def _model_too_small(class_names: Mapping[int, str], slots: ClassSlots) -> list[str]:
    # Id 0 is the background's where a label map has it, and no class to be found (fact sheet 4.2).
    findable = {i for i, name in class_names.items() if (i, name) != (0, "background")}
    beyond = sorted(i for i in findable if i not in slots)
    if not beyond:
        return []
    named = ", ".join(f"{i} ({class_names[i]})" for i in beyond[:_SHOWN])
    more = f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    return [
        f"the model has {len(slots)} classes and can only find ids {slots}, "
        f"but the label map also has {named}{more}"
    ]


def _different_names(class_names: Mapping[int, str], other_names: Mapping[int, str]) -> list[str]:
    different = sorted(
        i for i in set(class_names) & set(other_names) if class_names[i] != other_names[i]
    )
    lines = [
        f"class id {i} is {class_names[i]!r} in the label map and {other_names[i]!r} elsewhere"
        for i in different[:_SHOWN]
    ]
    return lines + _and_more(different)


def _and_more(ids: Sequence[int]) -> list[str]:
    hidden = len(ids) - _SHOWN
    return [f"and {hidden} more class ids like these"] if hidden > 0 else []


def _oddities(
    truths: Sequence[ImageTruth], class_names: Mapping[int, str], slots: ClassSlots
) -> list[str]:
    warnings = []
    largest = max(class_names, default=0)
    beyond = tuple(class_id for class_id in slots.ids if class_id > largest)
    if beyond:
        warnings.append(
            f"the model has {len(slots)} classes, the label map ends at id {largest}: "
            f"what it finds of ids {ClassSlots(beyond)} is not scored"
        )
    seen = {class_id for truth in truths for class_id in truth.class_ids.tolist()}
    absent = [name for i, name in sorted(class_names.items()) if i not in seen]
    if absent:
        more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
        warnings.append(
            f"no ground truth of {', '.join(absent[:_SHOWN])}{more}: left out of the means"
        )
    return warnings
