"""What is allowed but probably a mistake, and said wherever an experiment is read."""

import re
from collections import defaultdict
from collections.abc import Sequence

from stillbox.experiment import schema
from stillbox.experiment.rules.rule import Remark, Remarks, rule, strong_augmentations
from stillbox.experiment.run_length import depends_on_replicas
from stillbox.experiment.values import sections_of
from stillbox.findings import Finding
from stillbox.printing import count_text
from stillbox.references import Setting

# AutoAugment's policies with a step that changes contrast and a probability above 0.
_POLICIES_WITH_CONTRAST = ("v2", "v3")
_SHARD = re.compile(r"(?P<base>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>.*)")


@rule(schema.Experiment, severity="warning")
def all_shards_are_given(experiment: schema.Experiment) -> Remarks:
    """The sample configs of the Object Detection API name one shard of many."""
    for path, paths in (
        ("data.train.paths", experiment.data.train.paths),
        ("data.evaluation.paths", experiment.data.evaluation.paths),
    ):
        for (base, count, suffix), given in _shards(paths).items():
            # All shards listed one by one are as good as the pattern.
            if given < int(count):
                yield Remark(
                    path,
                    f"{given} of {int(count)} shards of {base}{suffix}; "
                    f"for all of them write {base}-?????-of-{count}{suffix}",
                )


def _shards(paths: Sequence[str]) -> dict[tuple[str, str, str], int]:
    numbers: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for match in filter(None, map(_SHARD.fullmatch, paths)):
        numbers[match["base"], match["count"], match["suffix"]].add(match["number"])
    return {key: len(shards) for key, shards in numbers.items()}


@rule(schema.ConvolutionalHead, severity="warning")
def layers_have_depth(head: schema.ConvolutionalHead) -> Remarks:
    """A depth of 0 disables the layers before the head."""
    if head.layers_before and not head.max_depth:
        problem = f"layers_before {head.layers_before} has no effect while max_depth is 0"
        yield Remark("layers_before", problem)


@rule(schema.Experiment, severity="warning")
def scores_have_records(experiment: schema.Experiment) -> Remarks:
    """Evaluation during training needs records."""
    every = experiment.train.evaluate_every
    if every and not experiment.data.evaluation.paths:
        problem = f"evaluate_every {every} has no effect while data.evaluation.paths is empty"
        yield Remark("train.evaluate_every", problem)


@rule(schema.CosineSchedule, severity="warning")
def cosine_decays(schedule: schema.CosineSchedule) -> Remarks:
    """The original accepts a cosine without a decay; its rate is then undefined for one step."""
    warmup, hold = schedule.warmup_steps or 0, schedule.hold_steps
    if schedule.total_steps and schedule.total_steps <= warmup + hold:
        yield Remark(
            "total_steps",
            f"total_steps {schedule.total_steps} leaves nothing after {warmup} warmup_steps and "
            f"{hold} hold_steps: the rate is learning_rate at step {schedule.total_steps}, where "
            "the original's is undefined without a hold, and final_learning_rate after it",
        )


@rule(schema.Training, severity="warning")
def steps_have_a_rate(train: schema.Training) -> Remarks:
    """Nothing is trained after the end of a cosine that ends at 0."""
    schedule = train.optimizer.schedule
    if not isinstance(schedule, schema.CosineSchedule) or schedule.final_learning_rate:
        return
    if schedule.total_steps and train.steps > schedule.total_steps:
        yield Remark(
            "steps",
            f"the learning rate is 0 from step {schedule.total_steps} (total_steps of the "
            f"schedule) to step {train.steps}",
        )


@rule(schema.FineTune, severity="warning")
def classifiers_have_no_heads(fine_tune: schema.FineTune) -> Remarks:
    """Only a detector has heads."""
    if fine_tune.checkpoint and fine_tune.load_heads and fine_tune.scope == "classification":
        yield Remark(
            "load_heads",
            "load_heads has no effect with scope: classification, which takes the backbone alone; "
            "a detector has scope: detection",
        )


@rule(schema.Data, severity="warning")
def batches_differ(data: schema.Data) -> Remarks:
    """Repeating the first batch is for measurements."""
    if data.repeat_first_batch:
        yield Remark(
            "repeat_first_batch",
            "every step trains on the first batch, so that the speed of a step can be measured; "
            "only this batch is learnt",
        )


@rule(schema.Experiment, severity="warning")
def replicas_have_an_effect(experiment: schema.Experiment) -> Remarks:
    """Replicas concern only settings that are per replica."""
    replicas = experiment.devices.replicas
    if replicas and not depends_on_replicas(experiment.model):
        yield Remark(
            "devices.replicas",
            f"replicas {replicas} has no effect: neither a batch norm's statistics nor the loss's "
            "normalizer is per_replica",
        )


@rule(schema.NormalizeImage, schema.SubtractChannelMean, severity="warning")
def pixels_are_normalised_once(
    section: schema.NormalizeImage | schema.SubtractChannelMean,
) -> Remarks:
    """`model.pixels` normalises after the augmentations."""
    yield Remark(
        "",
        f"{section.kind} changes the images of training alone, and model.pixels normalises "
        "them once more; a change for evaluation too belongs into model.pixels",
    )


@rule(schema.AutoAugment, severity="warning")
def contrast_is_used(section: schema.AutoAugment) -> Remarks:
    """Not every policy changes contrast."""
    if section.contrast != "original" and section.policy not in _POLICIES_WITH_CONTRAST:
        yield Remark(
            "contrast",
            f"contrast {section.contrast} has no effect: policy {section.policy} never changes "
            f"contrast, {' and '.join(_POLICIES_WITH_CONTRAST)} do",
        )


@rule(schema.Experiment, severity="warning")
def windows_are_resized_once(experiment: schema.Experiment) -> Remarks:
    """A crop may resize its window to the network input at once."""
    resizer = experiment.model.resizer
    if not isinstance(resizer, schema.FixedShapeResizer | schema.KeepAspectRatioResizer):
        return
    once = list(resizer.input_size)
    for path, section in sections_of(experiment.train.augmentations, "train.augmentations"):
        if isinstance(section, schema.SsdIouCrop) and list(section.resize_to) not in ([], once):
            yield Remark(
                f"{path}.resize_to",
                f"windows are resized twice: to {list(section.resize_to)}, then by "
                f"model.resizer to {once} (height, width); {once} resizes them once",
            )


@rule(schema.OneStage, severity="warning")
def boxes_are_relative_to_the_image(model: schema.OneStage) -> Remarks:
    """Without a change of the coordinate frame, boxes stay relative to the padded input."""
    nms = model.postprocessing.nms
    if not nms.change_coordinate_frame and not isinstance(model.resizer, schema.FixedShapeResizer):
        yield Remark(
            "postprocessing.nms.change_coordinate_frame",
            "detections stay relative to the padded network input, but scores and pictures take "
            "them as relative to the image, as in the original",
        )


@rule(schema.FasterRcnn, severity="warning")
def statistics_exclude_padding(model: schema.FasterRcnn) -> Remarks:
    """The mask of the padding does not reach the statistics of batch norm."""
    if not model.mask_padding or model.freeze_batch_norm:
        return
    norms = [conv.batch_norm for conv in (model.backbone.conv, model.neck.conv) if conv is not None]
    if any(norm is not None and norm.train for norm in norms):
        yield Remark(
            "freeze_batch_norm",
            "mask_padding masks images, but not the statistics of a batch: they include the "
            "padding, which images of the original do not have; "
            f"{Setting('model.freeze_batch_norm', True)} takes the moving ones",
        )


@rule(schema.Experiment, severity="warning")
def last_steps_are_a_part(experiment: schema.Experiment) -> Remarks:
    """Training reaches the steps that leave an augmentation out, and has steps before those."""
    train = experiment.train
    for path, augmentation in strong_augmentations(experiment):
        skipped, where = augmentation.skip_last_steps, f"{path}.skip_last_steps"
        last = f"last {count_text(skipped, 'step')}"
        if skipped and train.steps and skipped >= train.steps:
            problem = f"{augmentation.kind} has no effect: the {last} of {train.steps} leave it out"
            yield Remark(where, f"{problem}; give less than train.steps")
        if skipped and train.early_stopping is not None:
            problem = f"early stopping may end training before its {last}, which leave"
            yield Remark(where, f"{problem} {augmentation.kind} out")


@rule(schema.Experiment, severity="warning")
def strong_augmentations_give_the_input(experiment: schema.Experiment) -> Remarks:
    """A result of another size than the network input is resized once more."""
    resizer = experiment.model.resizer
    if not isinstance(resizer, schema.FixedShapeResizer | schema.KeepAspectRatioResizer):
        return
    once = list(resizer.input_size)
    for path, section in strong_augmentations(experiment):
        if isinstance(section, schema.LargeScaleJitter):
            size = [section.output_size] * 2
        elif isinstance(section, schema.RandomAffine) and section.output_size:
            size = list(section.output_size)
        else:
            continue
        if size != once:
            yield Remark(
                f"{path}.output_size",
                f"{section.kind} gives images of {size} (height, width), and model.resizer resizes "
                f"them to {once}: objects have another scale than the augmentation gives them",
            )


def frozen_fresh_statistics(experiment: schema.Experiment) -> Finding | None:
    """Returns a warning if batch norm normalises random weights with the statistics of no data."""
    conv = experiment.model.convolutions().get("backbone.conv")
    norm = conv.batch_norm if conv is not None else None
    if norm is None or experiment.train.fine_tune.checkpoint:
        return None
    if getattr(experiment.model, "freeze_batch_norm", False):
        path, trained = "model.freeze_batch_norm", "false"
    elif not norm.train:
        path, trained = "model.backbone.conv.batch_norm.train", "true"
    else:
        return None
    return Finding(
        "warning",
        path,
        "batch norm takes its moving statistics, which without pretrained weights are those "
        "of no data: values grow from layer to layer, and training mostly ends in NaN; name "
        f"weights by train.fine_tune.checkpoint, or {Setting(path, trained)}",
    )
