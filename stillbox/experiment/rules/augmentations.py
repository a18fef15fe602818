"""Rules about augmentations: their last steps, sizes, ranges and classes."""

from collections.abc import Iterator, Sequence

from stillbox.experiment import schema
from stillbox.experiment.rules.rule import error, rule
from stillbox.experiment.rules.warnings import warning
from stillbox.experiment.values import sections_of
from stillbox.findings import Finding
from stillbox.printing import count_text


@rule(schema.Experiment)
def last_steps_exist(experiment: schema.Experiment) -> Iterator[Finding]:
    """Training that leaves an augmentation out at its end has an end, and steps before that."""
    train, epochs = experiment.train, experiment.data.train.num_epochs
    for path, augmentation in _strong_augmentations(experiment):
        skipped, where = augmentation.skip_last_steps, f"{path}.skip_last_steps"
        if not skipped:
            continue
        if not train.steps and not epochs:
            what = f"training without an end has no last {count_text(skipped, 'step')}"
            fix = f"give train.steps or data.train.num_epochs, or --set {where}=0"
            yield error(where, what, fix)
        elif train.steps and skipped >= train.steps:
            what = (
                f"{augmentation.kind} has no effect: the last {count_text(skipped, 'step')} of "
                f"{train.steps} leave it out"
            )
            yield warning(where, f"{what}; give less than train.steps")
        if train.early_stopping is not None:
            what = (
                f"early stopping may end training before its last {count_text(skipped, 'step')}, "
                f"which leave {augmentation.kind} out"
            )
            yield warning(where, what)


@rule(schema.Experiment)
def strong_augmentations_give_the_input(experiment: schema.Experiment) -> Iterator[Finding]:
    """A result of another size than the network input is resized once more."""
    resizer = experiment.model.resizer
    if not isinstance(resizer, schema.FixedShapeResizer | schema.KeepAspectRatioResizer):
        return
    once = list(resizer.input_size)
    for path, section in _strong_augmentations(experiment):
        if isinstance(section, schema.LargeScaleJitter):
            size = [section.output_size] * 2
        elif isinstance(section, schema.RandomAffine) and section.output_size:
            size = list(section.output_size)
        else:
            continue
        if size != once:
            yield warning(
                f"{path}.output_size",
                f"{section.kind} gives images of {size} (height, width), and model.resizer resizes "
                f"them to {once}: objects have another scale than the augmentation gives them",
            )


def _strong_augmentations(
    experiment: schema.Experiment,
) -> Iterator[tuple[str, schema.StrongAugmentation]]:
    for path, section in sections_of(experiment.train.augmentations, "train.augmentations"):
        if isinstance(section, schema.StrongAugmentation):
            yield path, section


@rule(schema.RandomPadImage)
def canvases_have_two_sides(section: schema.RandomPadImage) -> Iterator[Finding]:
    """The original requires height and width together, or neither."""
    for end in ("min", "max"):
        names = f"{end}_height", f"{end}_width"
        given = [name for name in names if getattr(section, name) is not None]
        if len(given) == 1:
            (missing,) = set(names) - set(given)
            yield error(given[0], f"{given[0]} without {missing}", "give both or neither")


@rule(schema.NormalizeImage)
def values_have_a_range(section: schema.NormalizeImage) -> Iterator[Finding]:
    """A range of one value cannot be mapped to another range."""
    low, high = section.original_min, section.original_max
    if low >= high:
        what = f"original_max {high} is not above original_min {low}"
        yield error("original_max", what, "for images as they are read: 255")


@rule(schema.SsdIouCrop)
def iou_crops_are_possible(section: schema.SsdIouCrop) -> Iterator[Finding]:
    """There is a bound to draw, and a window can satisfy it: all bounds are excluded."""
    if not section.min_ious:
        yield error(
            "min_ious",
            "ssd_iou_crop has no min_ious to choose from",
            "leave them out for the usual ones; [-1] requires no IoU at all",
        )
    if 1 in section.min_ious:
        yield error("min_ious", "no window has an IoU above 1", "leave the 1 out")
    if section.max_aspect_ratio <= 1:
        what = f"no window has both sides below {section.max_aspect_ratio} times the other"
        yield error("max_aspect_ratio", what, "give more than 1; the usual one is 2")


@rule(schema.Experiment)
def labels_have_classes(experiment: schema.Experiment) -> Iterator[Finding]:
    """No box gets a class that the model does not have."""
    classes, known = experiment.model.num_classes, experiment.model.class_slots == "label_map_id"
    for path, ids in named_labels(experiment.train.augmentations):
        # Contiguous slots have the label map's ids, which are known only with the records.
        if known and ids and max(ids) > classes:
            yield error(
                path,
                f"there is no class {max(ids)}: the model has {classes}",
                f"give label map ids from 1 to {classes}",
            )
        if path.endswith("original_labels") and not ids:
            yield error(path, "remap_labels changes nothing", "name the classes")


def named_labels(
    augmentations: Sequence[schema.Augmentation],
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields path and label map ids of every field that names classes."""
    for path, section in sections_of(tuple(augmentations), "train.augmentations"):
        if isinstance(section, schema.DropLabelProbabilistically):
            yield f"{path}.label", (section.label,)
        elif isinstance(section, schema.RemapLabels):
            yield f"{path}.original_labels", section.original_labels
            yield f"{path}.new_label", (section.new_label,)
