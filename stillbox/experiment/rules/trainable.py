"""Rules for training alone: an experiment without records can still predict."""

import re
from collections.abc import Iterator

from stillbox.experiment.known_weights import advise_weights
from stillbox.experiment.rules.rule import Broken
from stillbox.experiment.schema import CosineSchedule, Experiment, FasterRcnn

_PLACEHOLDER = re.compile(r"PATH_TO_BE_CONFIGURED|\$\{[^}]*\}|<[A-Za-z][A-Za-z _-]*>")
_URL = re.compile(r"[a-z][a-z0-9+.-]+://")
_WRITTEN = "evaluation.pictures_directory"
CHECKPOINT = "train.fine_tune.checkpoint"
_OPTIONAL = {
    CHECKPOINT: "start from random weights",
    "data.evaluation.annotations": "take the records' own boxes",
    _WRITTEN: "write no pictures there",
}


def records_are_given(experiment: Experiment) -> Iterator[Broken]:
    """There are records and names of their classes."""
    if not experiment.data.train.paths:
        yield Broken(
            "data.train.paths",
            "no records to train on",
            "--set data.train.paths='[data/train-*.tfrecord]'",
        )
    if not experiment.data.train.label_map:
        yield Broken(
            "data.train.label_map",
            "no label map for the training records",
            "--set data.train.label_map=data/label_map.pbtxt",
        )
    if experiment.data.evaluation.paths and not experiment.data.evaluation.label_map:
        yield Broken(
            "data.evaluation.label_map",
            "no label map for the evaluation records",
            "--set data.evaluation.label_map=data/label_map.pbtxt",
        )


def early_stopping_needs_records(experiment: Experiment) -> Iterator[Broken]:
    """Early stopping depends on scores, and scores need records."""
    if experiment.train.early_stopping is not None and not experiment.data.evaluation.paths:
        yield Broken(
            "train.early_stopping",
            "early_stopping without evaluation records never stops",
            "--set data.evaluation.paths='[data/val-*.tfrecord]', or take early_stopping out",
        )


def paths_are_real(experiment: Experiment) -> Iterator[Broken]:
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
            yield Broken(path, f"{text!r} still holds the placeholder {placeholder[0]}", remedy)
        elif _URL.match(text):
            first = "" if path == _WRITTEN else "copy it to this machine; "
            yield Broken(path, f"{text!r} is not a local file", first + remedy)


def _paths(experiment: Experiment) -> Iterator[tuple[str, str]]:
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


def cosine_ends(experiment: Experiment) -> Iterator[Broken]:
    """A cosine that ends with training needs an end of training."""
    schedule, path = experiment.train.optimizer.schedule, "train.optimizer.schedule.total_steps"
    if isinstance(schedule, CosineSchedule) and schedule.total_steps is None:
        yield Broken(
            path,
            "the cosine ends with training, and training has no end: train.steps is 0",
            f"--set train.steps=N, or --set {path}=N",
        )


def samples_are_proposals(experiment: Experiment) -> Iterator[Broken]:
    """The second stage is trained with a part of the proposals."""
    model = experiment.model
    if not isinstance(model, FasterRcnn) or model.boxes is None:
        return
    sample, proposals = model.boxes.sample_size, model.proposals.max_proposals
    if sample > proposals and model.boxes.hard_example_miner is None:
        path = "model.boxes.sample_size"
        yield Broken(
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
