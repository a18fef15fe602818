"""Rules for training alone, and settings that are legal but probably unintended.

An experiment without records cannot be trained but can still predict.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from stillbox.experiment import schema
from stillbox.experiment.known_weights import advise_weights
from stillbox.experiment.rules.rule import error, rule
from stillbox.experiment.run_length import depends_on_replicas
from stillbox.experiment.values import sections_of
from stillbox.findings import Finding
from stillbox.references import Setting

PLACEHOLDER = re.compile(r"PATH_TO_BE_CONFIGURED|\$\{[^}]*\}|<[A-Za-z][A-Za-z _-]*>")
"""What stands for a path in a sample config."""
_URL = re.compile(r"[a-z][a-z0-9+.-]+://")
_WRITTEN = "evaluation.pictures_directory"
CHECKPOINT = "train.fine_tune.checkpoint"
TEACHER = "train.distillation.teacher"
_OPTIONAL = {
    CHECKPOINT: "start from random weights",
    "data.evaluation.annotations": "take the records' own boxes",
    _WRITTEN: "write no pictures there",
}


@rule(schema.Experiment, training=True)
def records_are_given(experiment: schema.Experiment) -> Iterator[Finding]:
    """There are records and names of their classes."""
    if not experiment.data.train.paths:
        what = "no records to train on"
        yield error(
            "data.train.paths", what, f"{Setting('data.train.paths', ['data/train-*.tfrecord'])}"
        )
    if not experiment.data.train.label_map:
        what = "no label map for the training records"
        yield error(
            "data.train.label_map",
            what,
            f"{Setting('data.train.label_map', 'data/label_map.pbtxt')}",
        )
    if experiment.data.evaluation.paths and not experiment.data.evaluation.label_map:
        fix = f"{Setting('data.evaluation.label_map', 'data/label_map.pbtxt')}"
        yield error("data.evaluation.label_map", "no label map for the evaluation records", fix)


@rule(schema.Experiment, training=True)
def early_stopping_needs_records(experiment: schema.Experiment) -> Iterator[Finding]:
    """Early stopping depends on scores, and scores need records."""
    if experiment.train.early_stopping is not None and not experiment.data.evaluation.paths:
        what = "early_stopping without evaluation records never stops"
        fix = (
            f"{Setting('data.evaluation.paths', ['data/val-*.tfrecord'])}, or take early_stopping "
            "out"
        )
        yield error("train.early_stopping", what, fix)


@rule(schema.Experiment, training=True)
def cosine_ends(experiment: schema.Experiment) -> Iterator[Finding]:
    """A cosine that ends with training needs an end of training."""
    schedule, path = experiment.train.optimizer.schedule, "train.optimizer.schedule.total_steps"
    if isinstance(schedule, schema.CosineSchedule) and schedule.total_steps is None:
        what = "the cosine ends with training, and training has no end: train.steps is 0"
        yield error(path, what, f"{Setting('train.steps', 'N')}, or {Setting(path, 'N')}")


@rule(schema.Experiment, training=True)
def samples_are_proposals(experiment: schema.Experiment) -> Iterator[Finding]:
    """The second stage is trained with a part of the proposals."""
    model = experiment.model
    if not isinstance(model, schema.FasterRcnn) or model.boxes is None:
        return
    sample, proposals = model.boxes.sample_size, model.proposals.max_proposals
    if sample > proposals and model.boxes.hard_example_miner is None:
        path = "model.boxes.sample_size"
        what = (
            f"sample_size {sample} is more than the {proposals} proposals of an image "
            "(model.proposals.max_proposals)"
        )
        yield error(
            path, what, f"{Setting(path, proposals)}, or raise model.proposals.max_proposals"
        )


@rule(schema.Experiment, training=True)
def paths_are_real(experiment: schema.Experiment) -> Iterator[Finding]:
    """Sample configs contain placeholders; records and label maps alone may lie in buckets."""
    for path, text in _paths(experiment):
        # The remedy is ready to paste, but for the path itself.
        remedy = f"{Setting(path, 'PATH')}"
        if path in _OPTIONAL:
            remedy += f", or {Setting(path, '')} to {_OPTIONAL[path]}"
        if path == CHECKPOINT:
            known = advise_weights(text, experiment.model, experiment.train.fine_tune.scope)
            remedy = f"{known}; or {remedy}" if known else remedy
        if placeholder := PLACEHOLDER.search(text):
            yield error(path, f"{text!r} still holds the placeholder {placeholder[0]}", remedy)
        elif _URL.match(text) and not path.endswith((".paths", ".label_map")):
            first = "" if path == _WRITTEN else "copy it to this machine; "
            yield error(path, f"{text!r} is not a local file", first + remedy)


def _paths(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    for name, records in (
        ("data.train", experiment.data.train),
        ("data.evaluation", experiment.data.evaluation),
    ):
        for text in records.paths:
            yield f"{name}.paths", text
        yield f"{name}.label_map", records.label_map
        yield f"{name}.annotations", records.annotations
    yield CHECKPOINT, experiment.train.fine_tune.checkpoint
    if experiment.train.distillation is not None:
        yield TEACHER, experiment.train.distillation.teacher
    yield _WRITTEN, experiment.evaluation.pictures_directory


# AutoAugment's policies with a step that changes contrast and a probability above 0.
_POLICIES_WITH_CONTRAST = ("v2", "v3")
_SHARD = re.compile(r"(?P<base>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>.*)")


def warning(path: str, what: str) -> Finding:
    """Returns a warning whose remedy is a part of its sentence."""
    return Finding("warning", path, what)


@rule(schema.Experiment)
def all_shards_are_given(experiment: schema.Experiment) -> Iterator[Finding]:
    """The sample configs of the Object Detection API name one shard of many."""
    for path, paths in (
        ("data.train.paths", experiment.data.train.paths),
        ("data.evaluation.paths", experiment.data.evaluation.paths),
    ):
        for (base, count, suffix), given in _shards(paths).items():
            # All shards listed one by one are as good as the pattern.
            if given < int(count):
                yield warning(
                    path,
                    f"{given} of {int(count)} shards of {base}{suffix}; "
                    f"for all of them write {base}-?????-of-{count}{suffix}",
                )


def _shards(paths: Sequence[str]) -> dict[tuple[str, str, str], int]:
    numbers: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for match in filter(None, map(_SHARD.fullmatch, paths)):
        numbers[match["base"], match["count"], match["suffix"]].add(match["number"])
    return {key: len(found) for key, found in numbers.items()}


@rule(schema.ConvolutionalHead)
def layers_have_depth(head: schema.ConvolutionalHead) -> Iterator[Finding]:
    """A depth of 0 disables the layers before the head."""
    if head.layers_before and not head.max_depth:
        what = f"layers_before {head.layers_before} has no effect while max_depth is 0"
        yield warning("layers_before", what)


@rule(schema.Experiment)
def scores_have_records(experiment: schema.Experiment) -> Iterator[Finding]:
    """Evaluation during training needs records."""
    every = experiment.train.evaluate_every
    if every and not experiment.data.evaluation.paths:
        what = f"evaluate_every {every} has no effect while data.evaluation.paths is empty"
        yield warning("train.evaluate_every", what)


@rule(schema.CosineSchedule)
def cosine_decays(schedule: schema.CosineSchedule) -> Iterator[Finding]:
    """The original accepts a cosine without a decay; its rate is then undefined for one step."""
    warmup, hold = schedule.warmup_steps or 0, schedule.hold_steps
    if schedule.total_steps and schedule.total_steps <= warmup + hold:
        yield warning(
            "total_steps",
            f"total_steps {schedule.total_steps} leaves nothing after {warmup} warmup_steps and "
            f"{hold} hold_steps: the rate is learning_rate at step {schedule.total_steps}, where "
            "the original's is undefined without a hold, and final_learning_rate after it",
        )


@rule(schema.Training)
def steps_have_a_rate(train: schema.Training) -> Iterator[Finding]:
    """Nothing is trained after the end of a cosine that ends at 0."""
    schedule = train.optimizer.schedule
    if not isinstance(schedule, schema.CosineSchedule) or schedule.final_learning_rate:
        return
    if schedule.total_steps and train.steps > schedule.total_steps:
        yield warning(
            "steps",
            f"the learning rate is 0 from step {schedule.total_steps} (total_steps of the "
            f"schedule) to step {train.steps}",
        )


@rule(schema.FineTune)
def classifiers_have_no_heads(fine_tune: schema.FineTune) -> Iterator[Finding]:
    """Heads are those of a detector."""
    if fine_tune.checkpoint and fine_tune.load_heads and fine_tune.scope == "classification":
        yield warning(
            "load_heads",
            "load_heads has no effect with scope: classification, which takes the backbone alone; "
            "a detector has scope: detection",
        )


@rule(schema.Data)
def batches_differ(data: schema.Data) -> Iterator[Finding]:
    """Repeating the first batch is for measurements."""
    if data.repeat_first_batch:
        yield warning(
            "repeat_first_batch",
            "every step trains on the first batch, so that the speed of a step can be measured; "
            "only this batch is learnt",
        )


@rule(schema.Experiment)
def replicas_have_an_effect(experiment: schema.Experiment) -> Iterator[Finding]:
    """Replicas concern only settings that are per replica."""
    replicas = experiment.devices.replicas
    if replicas and not depends_on_replicas(experiment.model):
        yield warning(
            "devices.replicas",
            f"replicas {replicas} has no effect: neither a batch norm's statistics nor the loss's "
            "normalizer is per_replica",
        )


@rule(schema.NormalizeImage, schema.SubtractChannelMean)
def pixels_are_normalised_once(
    section: schema.NormalizeImage | schema.SubtractChannelMean,
) -> Iterator[Finding]:
    """`model.pixels` normalises after the augmentations."""
    yield warning(
        "",
        f"{section.kind} changes the images of training alone, and model.pixels normalises "
        "them once more; a change for evaluation too belongs into model.pixels",
    )


@rule(schema.AutoAugment)
def contrast_is_used(section: schema.AutoAugment) -> Iterator[Finding]:
    """Not every policy changes contrast."""
    if section.contrast != "original" and section.policy not in _POLICIES_WITH_CONTRAST:
        yield warning(
            "contrast",
            f"contrast {section.contrast} has no effect: policy {section.policy} never changes "
            f"contrast, {' and '.join(_POLICIES_WITH_CONTRAST)} do",
        )


@rule(schema.Experiment)
def windows_are_resized_once(experiment: schema.Experiment) -> Iterator[Finding]:
    """A crop may resize its window to the network input at once."""
    resizer = experiment.model.resizer
    if not isinstance(resizer, schema.FixedShapeResizer | schema.KeepAspectRatioResizer):
        return
    once = list(resizer.input_size)
    for path, section in sections_of(experiment.train.augmentations, "train.augmentations"):
        if isinstance(section, schema.SsdIouCrop) and list(section.resize_to) not in ([], once):
            yield warning(
                f"{path}.resize_to",
                f"windows are resized twice: to {list(section.resize_to)}, then by "
                f"model.resizer to {once} (height, width); {once} resizes them once",
            )


@rule(schema.OneStage)
def boxes_are_relative_to_the_image(model: schema.OneStage) -> Iterator[Finding]:
    """Without a change of the coordinate frame, boxes stay relative to the padded input."""
    nms = model.postprocessing.nms
    if not nms.change_coordinate_frame and not isinstance(model.resizer, schema.FixedShapeResizer):
        yield warning(
            "postprocessing.nms.change_coordinate_frame",
            "detections stay relative to the padded network input, but scores and pictures take "
            "them as relative to the image, as in the original",
        )


@rule(schema.FasterRcnn)
def statistics_exclude_padding(model: schema.FasterRcnn) -> Iterator[Finding]:
    """The mask of the padding does not reach the statistics of batch norm."""
    if not model.mask_padding or model.freeze_batch_norm:
        return
    norms = [conv.batch_norm for conv in (model.backbone.conv, model.neck.conv) if conv is not None]
    if any(norm is not None and norm.train for norm in norms):
        yield warning(
            "freeze_batch_norm",
            "mask_padding masks images, but not the statistics of a batch: they include the "
            "padding, which images of the original do not have; "
            f"{Setting('model.freeze_batch_norm', True)} takes the moving ones",
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
    return warning(
        path,
        "batch norm takes its moving statistics, which without pretrained weights are those "
        "of no data: values grow from layer to layer, and training mostly ends in NaN; name "
        f"weights by train.fine_tune.checkpoint, or {Setting(path, trained)}",
    )
