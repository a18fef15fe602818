"""Rules for training alone, and settings that are legal but probably unintended.

An experiment without records cannot be trained but can still predict.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from stillbox.experiment import schema
from stillbox.experiment.known_weights import advise_weights
from stillbox.experiment.rules.rule import Violation
from stillbox.experiment.rules.training import suspicious_augmentations
from stillbox.experiment.run_length import depends_on_replicas

_PLACEHOLDER = re.compile(r"PATH_TO_BE_CONFIGURED|\$\{[^}]*\}|<[A-Za-z][A-Za-z _-]*>")
_URL = re.compile(r"[a-z][a-z0-9+.-]+://")
_WRITTEN = "evaluation.pictures_directory"
CHECKPOINT = "train.fine_tune.checkpoint"
_OPTIONAL = {
    CHECKPOINT: "start from random weights",
    "data.evaluation.annotations": "take the records' own boxes",
    _WRITTEN: "write no pictures there",
}


def records_are_given(experiment: schema.Experiment) -> Iterator[Violation]:
    """There are records and names of their classes."""
    if not experiment.data.train.paths:
        yield Violation(
            "data.train.paths",
            "no records to train on",
            "--set data.train.paths='[data/train-*.tfrecord]'",
        )
    if not experiment.data.train.label_map:
        yield Violation(
            "data.train.label_map",
            "no label map for the training records",
            "--set data.train.label_map=data/label_map.pbtxt",
        )
    if experiment.data.evaluation.paths and not experiment.data.evaluation.label_map:
        yield Violation(
            "data.evaluation.label_map",
            "no label map for the evaluation records",
            "--set data.evaluation.label_map=data/label_map.pbtxt",
        )


def early_stopping_needs_records(experiment: schema.Experiment) -> Iterator[Violation]:
    """Early stopping depends on scores, and scores need records."""
    if experiment.train.early_stopping is not None and not experiment.data.evaluation.paths:
        yield Violation(
            "train.early_stopping",
            "early_stopping without evaluation records never stops",
            "--set data.evaluation.paths='[data/val-*.tfrecord]', or take early_stopping out",
        )


def paths_are_real(experiment: schema.Experiment) -> Iterator[Violation]:
    """Sample configs contain placeholders, and cloud buckets are not files."""
    for path, text in _paths(experiment):
        # The remedy is ready to paste, but for the path itself.
        remedy = f"--set {path}=PATH"
        if path in _OPTIONAL:
            remedy += f", or --set {path}= to {_OPTIONAL[path]}"
        if path == CHECKPOINT:
            known = advise_weights(text, experiment.model, experiment.train.fine_tune.scope)
            remedy = f"{known}; or {remedy}" if known else remedy
        if placeholder := _PLACEHOLDER.search(text):
            yield Violation(path, f"{text!r} still holds the placeholder {placeholder[0]}", remedy)
        elif _URL.match(text):
            first = "" if path == _WRITTEN else "copy it to this machine; "
            yield Violation(path, f"{text!r} is not a local file", first + remedy)


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
    yield _WRITTEN, experiment.evaluation.pictures_directory


def cosine_ends(experiment: schema.Experiment) -> Iterator[Violation]:
    """A cosine that ends with training needs an end of training."""
    schedule, path = experiment.train.optimizer.schedule, "train.optimizer.schedule.total_steps"
    if isinstance(schedule, schema.CosineSchedule) and schedule.total_steps is None:
        yield Violation(
            path,
            "the cosine ends with training, and training has no end: train.steps is 0",
            f"--set train.steps=N, or --set {path}=N",
        )


def samples_are_proposals(experiment: schema.Experiment) -> Iterator[Violation]:
    """The second stage is trained with a part of the proposals."""
    model = experiment.model
    if not isinstance(model, schema.FasterRcnn) or model.boxes is None:
        return
    sample, proposals = model.boxes.sample_size, model.proposals.max_proposals
    if sample > proposals and model.boxes.hard_example_miner is None:
        path = "model.boxes.sample_size"
        yield Violation(
            path,
            f"sample_size {sample} is more than the {proposals} proposals of an image "
            "(model.proposals.max_proposals)",
            f"--set {path}={proposals}, or raise model.proposals.max_proposals",
        )


TRAINABLE_RULES = (
    records_are_given,
    early_stopping_needs_records,
    cosine_ends,
    samples_are_proposals,
    paths_are_real,
)
"""All of them."""


_SHARD = re.compile(r"(?P<base>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>.*)")


def warnings_about(experiment: schema.Experiment, origins: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence for everything that is seldom meant, each with its position."""
    return tuple(
        f"{origins.get(path, path)}: {sentence}"
        for path, sentence in suspicious_settings(experiment)
    )


def suspicious_settings(experiment: schema.Experiment) -> list[tuple[str, str]]:
    """Returns path and sentence for everything that is allowed but seldom meant."""
    return [
        *_single_shards(experiment),
        *_layers_without_depth(experiment),
        *_scores_without_records(experiment),
        *_cosines_without_decay(experiment),
        *_steps_without_rate(experiment),
        *_one_batch_only(experiment),
        *_replicas_of_nothing(experiment),
        *suspicious_augmentations(experiment),
        *_boxes_outside_the_image(experiment),
        *_statistics_of_padding(experiment),
    ]


def _single_shards(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    """The sample configs of the Object Detection API name one shard of many."""
    for path, paths in (
        ("data.train.paths", experiment.data.train.paths),
        ("data.evaluation.paths", experiment.data.evaluation.paths),
    ):
        for (base, count, suffix), given in _shards(paths).items():
            # All shards listed one by one are as good as the pattern.
            if given < int(count):
                yield (
                    path,
                    f"{given} of {int(count)} shards of {base}{suffix}; "
                    f"for all of them write {base}-?????-of-{count}{suffix}",
                )


def _shards(paths: Sequence[str]) -> dict[tuple[str, str, str], int]:
    numbers: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for match in filter(None, map(_SHARD.fullmatch, paths)):
        numbers[match["base"], match["count"], match["suffix"]].add(match["number"])
    return {key: len(found) for key, found in numbers.items()}


def _layers_without_depth(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    head = getattr(experiment.model, "head", None)
    if isinstance(head, schema.ConvolutionalHead) and head.layers_before and not head.max_depth:
        yield (
            "model.head.layers_before",
            f"layers_before {head.layers_before} has no effect while max_depth is 0",
        )


def _scores_without_records(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    every = experiment.train.evaluate_every
    if every and not experiment.data.evaluation.paths:
        yield (
            "train.evaluate_every",
            f"evaluate_every {every} has no effect while data.evaluation.paths is empty",
        )


def _cosines_without_decay(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    """The original takes them, and has no number for the rate of the step between."""
    schedule = experiment.train.optimizer.schedule
    if not isinstance(schedule, schema.CosineSchedule) or not schedule.total_steps:
        return
    warmup, hold = schedule.warmup_steps or 0, schedule.hold_steps
    if schedule.total_steps <= warmup + hold:
        yield (
            "train.optimizer.schedule.total_steps",
            f"total_steps {schedule.total_steps} leaves nothing after {warmup} warmup_steps and "
            f"{hold} hold_steps: the rate is learning_rate at step {schedule.total_steps}, where "
            "the original's is undefined without a hold, and final_learning_rate after it",
        )


def _steps_without_rate(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    """After the end of a cosine that ends at 0 nothing is trained."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    if not isinstance(schedule, schema.CosineSchedule) or schedule.final_learning_rate:
        return
    if schedule.total_steps and steps > schedule.total_steps:
        yield (
            "train.steps",
            f"the learning rate is 0 from step {schedule.total_steps} (total_steps of the "
            f"schedule) to step {steps}",
        )


def _replicas_of_nothing(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    model, replicas = experiment.model, experiment.devices.replicas
    if replicas and not depends_on_replicas(model):
        yield (
            "devices.replicas",
            f"replicas {replicas} has no effect: neither a batch norm's statistics nor the loss's "
            "normalizer is per_replica",
        )


def _one_batch_only(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    if experiment.data.repeat_first_batch:
        yield (
            "data.repeat_first_batch",
            "every step trains on the first batch, so that the speed of a step can be measured; "
            "only this batch is learnt",
        )


def _boxes_outside_the_image(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    model = experiment.model
    if not isinstance(model, schema.OneStage):
        return
    nms, resizer = model.postprocessing.nms, model.resizer
    if not nms.change_coordinate_frame and not isinstance(resizer, schema.FixedShapeResizer):
        yield (
            "model.postprocessing.nms.change_coordinate_frame",
            "detections stay relative to the padded network input, but scores and pictures take "
            "them as relative to the image, as in the original",
        )


def _statistics_of_padding(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    model = experiment.model
    if (
        not isinstance(model, schema.FasterRcnn)
        or not model.mask_padding
        or model.freeze_batch_norm
    ):
        return
    norms = [conv.batch_norm for conv in (model.backbone.conv, model.neck.conv) if conv is not None]
    if any(norm is not None and norm.train for norm in norms):
        yield (
            "model.freeze_batch_norm",
            "mask_padding masks images, but not the statistics of a batch: they include the "
            "padding, which images of the original do not have; --set model.freeze_batch_norm=true "
            "takes the moving ones",
        )


def frozen_fresh_statistics(experiment: schema.Experiment) -> tuple[str, str] | None:
    """Returns field and sentence for batch norm that normalises random weights with nothing."""
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
    return path, (
        "batch norm takes its moving statistics, which without pretrained weights are those of no "
        "data: values grow from layer to layer, and training mostly ends in NaN; name weights by "
        f"train.fine_tune.checkpoint, or --set {path}={trained}"
    )
