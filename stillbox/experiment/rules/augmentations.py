"""Rules about augmentations, and what is allowed but seldom meant."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import (
    Augmentation,
    AutoAugment,
    DropLabelProbabilistically,
    Experiment,
    FixedShapeResizer,
    KeepAspectRatioResizer,
    NormalizeImage,
    RandomPadImage,
    RemapLabels,
    SsdIouCrop,
    SubtractChannelMean,
)
from stillbox.experiment.values import Value

# AutoAugment's policies with a step that changes contrast and a probability above 0.
_POLICIES_WITH_CONTRAST = ("v2", "v3")

# How many numbers a list of an augmentation holds; the others have any length.
_LENGTHS: dict[str, tuple[tuple[int, ...], str]] = {
    "pad_color": ((0, 3), "give one for each of R, G, B, or none for the image's mean"),
    "means": ((3,), "give one for each of R, G, B"),
    "min_padded_size_ratio": ((2,), "give one for the height and one for the width"),
    "max_padded_size_ratio": ((2,), "give one for the height and one for the width"),
    "resize_to": ((0, 2), "give height and width, or none to leave the size to model.resizer"),
}


def ranges_are_ranges(experiment: Experiment) -> Iterator[Broken]:
    """What has a least and a greatest value has them in this order."""
    for path, section in _sections(experiment):
        for field in dataclasses.fields(section):
            if not field.name.startswith("min_"):
                continue
            name = field.name.removeprefix("min_")
            low, high = getattr(section, field.name), getattr(section, f"max_{name}", None)
            if _is_above(low, high):
                yield Broken(
                    f"{path}.min_{name}",
                    f"min_{name} {_spell(low)} is above max_{name} {_spell(high)}",
                    "lower it",
                )


def operations_are_given(experiment: Experiment) -> Iterator[Broken]:
    """What chooses among operations has something to choose from."""
    for path, section in _sections(experiment):
        if getattr(section, "operations", None) == ():
            yield Broken(
                f"{path}.operations",
                f"{section.kind} has no operations",
                "leave them out for the usual ones, or give at least one",
            )


def lists_have_their_lengths(experiment: Experiment) -> Iterator[Broken]:
    """A colour has three numbers, a size has two."""
    for path, section in _sections(experiment):
        for name, (lengths, fix) in _LENGTHS.items():
            values = getattr(section, name, None)
            if values is not None and len(values) not in lengths:
                yield Broken(f"{path}.{name}", f"{name} has {len(values)} numbers", fix)


def canvases_have_two_sides(experiment: Experiment) -> Iterator[Broken]:
    """The original wants height and width together, or neither."""
    for path, section in _sections(experiment):
        if not isinstance(section, RandomPadImage):
            continue
        for end in ("min", "max"):
            names = f"{end}_height", f"{end}_width"
            given = [name for name in names if getattr(section, name) is not None]
            if len(given) == 1:
                (missing,) = set(names) - set(given)
                yield Broken(
                    f"{path}.{given[0]}", f"{given[0]} without {missing}", "give both or neither"
                )


def values_have_a_range(experiment: Experiment) -> Iterator[Broken]:
    """A range of one value cannot be mapped to another range."""
    for path, section in _sections(experiment):
        if isinstance(section, NormalizeImage) and section.original_min >= section.original_max:
            yield Broken(
                f"{path}.original_max",
                f"original_max {section.original_max} is not above original_min "
                f"{section.original_min}",
                "for images as they are read: 255",
            )


def iou_crops_are_possible(experiment: Experiment) -> Iterator[Broken]:
    """There is something to draw, and a window could fulfil it: all bounds are excluded."""
    for path, section in _sections(experiment):
        if not isinstance(section, SsdIouCrop):
            continue
        if not section.min_ious:
            yield Broken(
                f"{path}.min_ious",
                "ssd_iou_crop has no min_ious to choose from",
                "leave them out for the usual ones; [-1] asks for no IoU at all",
            )
        if 1 in section.min_ious:
            yield Broken(f"{path}.min_ious", "no window has an IoU above 1", "leave the 1 out")
        if section.max_aspect_ratio <= 1:
            yield Broken(
                f"{path}.max_aspect_ratio",
                f"no window has both sides below {section.max_aspect_ratio} times the other",
                "give more than 1; the usual one is 2",
            )


def labels_have_classes(experiment: Experiment) -> Iterator[Broken]:
    """No box gets a class that the model does not have."""
    classes, known = experiment.model.num_classes, experiment.model.class_slots == "label_map_id"
    for path, ids in named_labels(experiment.train.augmentations):
        # Contiguous slots have the label map's ids, which the loader of the records looks at.
        if known and ids and max(ids) > classes:
            yield Broken(
                path,
                f"there is no class {max(ids)}: the model has {classes}",
                f"give label map ids from 1 to {classes}",
            )
        if path.endswith("original_labels") and not ids:
            yield Broken(path, "remap_labels changes nothing", "name the classes")


def named_labels(augmentations: Sequence[Augmentation]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields path and label map ids of every field that names classes."""
    for path, section in _sections_of(augmentations):
        if isinstance(section, DropLabelProbabilistically):
            yield f"{path}.label", (section.label,)
        elif isinstance(section, RemapLabels):
            yield f"{path}.original_labels", section.original_labels
            yield f"{path}.new_label", (section.new_label,)


def values_that_only_training_sees(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields a path and a sentence for augmentations that belong into `model.pixels`."""
    for path, section in _sections(experiment):
        if isinstance(section, NormalizeImage | SubtractChannelMean):
            yield (
                path,
                f"{section.kind} changes the images of training alone, and model.pixels normalises "
                "them once more; what evaluation should see too belongs into model.pixels",
            )


def contrasts_that_never_change(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields a path and a sentence for a choice of contrast that a policy has no use for."""
    for path, section in _sections(experiment):
        if not isinstance(section, AutoAugment) or section.contrast == "original":
            continue
        if section.policy not in _POLICIES_WITH_CONTRAST:
            yield (
                f"{path}.contrast",
                f"contrast {section.contrast} has no effect: policy {section.policy} never changes "
                f"contrast, {' and '.join(_POLICIES_WITH_CONTRAST)} do",
            )


def crops_that_are_resized_twice(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields a path and a sentence for crops whose size is not that of the network input."""
    resizer = experiment.model.resizer
    if not isinstance(resizer, FixedShapeResizer | KeepAspectRatioResizer):
        return
    for path, section in _sections(experiment):
        if not isinstance(section, SsdIouCrop):
            continue
        if section.resize_to not in ((), resizer.input_size):
            once = _spell(resizer.input_size)
            yield (
                f"{path}.resize_to",
                f"windows are resized twice: to {_spell(section.resize_to)}, then by "
                f"model.resizer to {once} (height, width); {once} resizes them once",
            )


def _sections(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    """Yields every augmentation and every operation in one, with its path."""
    return _sections_of(experiment.train.augmentations)


def _sections_of(augmentations: Sequence[Augmentation]) -> Iterator[tuple[str, Any]]:
    for index, augmentation in enumerate(augmentations):
        path = f"train.augmentations.{index}"
        yield path, augmentation
        for number, operation in enumerate(getattr(augmentation, "operations", ())):
            yield f"{path}.operations.{number}", operation


def _is_above(low: Value, high: Value) -> bool:
    if low is None or high is None:
        return False
    if isinstance(low, tuple):
        return any(map(_is_above, low, high))
    return bool(low > high)


def _spell(value: Value) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


AUGMENTATION_RULES: tuple[Rule, ...] = (
    ranges_are_ranges,
    operations_are_given,
    lists_have_their_lengths,
    canvases_have_two_sides,
    values_have_a_range,
    iou_crops_are_possible,
    labels_have_classes,
)
"""All of them."""
