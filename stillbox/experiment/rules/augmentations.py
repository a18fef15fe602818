"""Rules about augmentations, and what is allowed but seldom meant."""

from collections.abc import Iterator, Sequence
from typing import Any

from stillbox.experiment.rules.rule import Broken, rule
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
from stillbox.experiment.values import sections_of
from stillbox.printing import count_text

# AutoAugment's policies with a step that changes contrast and a probability above 0.
_POLICIES_WITH_CONTRAST = ("v2", "v3")

# Legal lengths of lists of numbers; the others have any length.
_LENGTHS: dict[str, tuple[tuple[int, ...], str]] = {
    "pad_color": ((0, 3), "give one for each of R, G, B, or none for the image's mean"),
    "means": ((3,), "give one for each of R, G, B"),
    "min_padded_size_ratio": ((2,), "give one for the height and one for the width"),
    "max_padded_size_ratio": ((2,), "give one for the height and one for the width"),
    "resize_to": ((0, 2), "give height and width, or none to leave the size to model.resizer"),
}


@rule(object)
def lists_have_their_lengths(section: Any) -> Iterator[Broken]:  # noqa: ANN401
    """A colour has three numbers, a size has two; operations are not empty."""
    if getattr(section, "operations", None) == ():
        fix = "leave them out for the usual ones, or give at least one"
        yield Broken("operations", f"{section.kind} has no operations", fix)
    for name, (lengths, fix) in _LENGTHS.items():
        values = getattr(section, name, None)
        if values is not None and len(values) not in lengths:
            yield Broken(name, f"{name} has {count_text(len(values), 'number')}", fix)


@rule(RandomPadImage)
def canvases_have_two_sides(section: RandomPadImage) -> Iterator[Broken]:
    """The original requires height and width together, or neither."""
    for end in ("min", "max"):
        names = f"{end}_height", f"{end}_width"
        given = [name for name in names if getattr(section, name) is not None]
        if len(given) == 1:
            (missing,) = set(names) - set(given)
            yield Broken(given[0], f"{given[0]} without {missing}", "give both or neither")


@rule(NormalizeImage)
def values_have_a_range(section: NormalizeImage) -> Iterator[Broken]:
    """A range of one value cannot be mapped to another range."""
    low, high = section.original_min, section.original_max
    if low >= high:
        what = f"original_max {high} is not above original_min {low}"
        yield Broken("original_max", what, "for images as they are read: 255")


@rule(SsdIouCrop)
def iou_crops_are_possible(section: SsdIouCrop) -> Iterator[Broken]:
    """There is a bound to draw, and a window can satisfy it: all bounds are excluded."""
    if not section.min_ious:
        yield Broken(
            "min_ious",
            "ssd_iou_crop has no min_ious to choose from",
            "leave them out for the usual ones; [-1] requires no IoU at all",
        )
    if 1 in section.min_ious:
        yield Broken("min_ious", "no window has an IoU above 1", "leave the 1 out")
    if section.max_aspect_ratio <= 1:
        what = f"no window has both sides below {section.max_aspect_ratio} times the other"
        yield Broken("max_aspect_ratio", what, "give more than 1; the usual one is 2")


@rule(Experiment)
def labels_have_classes(experiment: Experiment) -> Iterator[Broken]:
    """No box gets a class that the model does not have."""
    classes, known = experiment.model.num_classes, experiment.model.class_slots == "label_map_id"
    for path, ids in named_labels(experiment.train.augmentations):
        # Contiguous slots have the label map's ids, which are known only with the records.
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
    for path, section in sections_of(tuple(augmentations), "train.augmentations"):
        if isinstance(section, DropLabelProbabilistically):
            yield f"{path}.label", (section.label,)
        elif isinstance(section, RemapLabels):
            yield f"{path}.original_labels", section.original_labels
            yield f"{path}.new_label", (section.new_label,)


def seldom_meant_augmentations(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields a path and a sentence for augmentations that are allowed but seldom meant."""
    resizer = experiment.model.resizer
    for path, section in sections_of(experiment.train.augmentations, "train.augmentations"):
        if isinstance(section, NormalizeImage | SubtractChannelMean):
            yield (
                path,
                f"{section.kind} changes the images of training alone, and model.pixels normalises "
                "them once more; a change for evaluation too belongs into model.pixels",
            )
        if (
            isinstance(section, AutoAugment)
            and section.contrast != "original"
            and section.policy not in _POLICIES_WITH_CONTRAST
        ):
            yield (
                f"{path}.contrast",
                f"contrast {section.contrast} has no effect: policy {section.policy} never changes "
                f"contrast, {' and '.join(_POLICIES_WITH_CONTRAST)} do",
            )
        if isinstance(section, SsdIouCrop) and isinstance(
            resizer, FixedShapeResizer | KeepAspectRatioResizer
        ):
            once = list(resizer.input_size)
            if list(section.resize_to) not in ([], once):
                yield (
                    f"{path}.resize_to",
                    f"windows are resized twice: to {list(section.resize_to)}, then by "
                    f"model.resizer to {once} (height, width); {once} resizes them once",
                )
