"""What training lacks: records, names of classes, files. Such an experiment can still predict."""

import re
from collections.abc import Iterator

from stillbox.experiment import schema
from stillbox.experiment.known_weights import advise_weights
from stillbox.experiment.rules.rule import Remark, Remarks, rule
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


@rule(schema.Experiment, on="training")
def records_are_given(experiment: schema.Experiment) -> Remarks:
    """There are records and names of their classes."""
    if not experiment.data.train.paths:
        problem = "no records to train on"
        yield Remark(
            "data.train.paths", problem, f"{Setting('data.train.paths', ['data/train-*.tfrecord'])}"
        )
    if not experiment.data.train.label_map:
        problem = "no label map for the training records"
        yield Remark(
            "data.train.label_map",
            problem,
            f"{Setting('data.train.label_map', 'data/label_map.pbtxt')}",
        )
    if experiment.data.evaluation.paths and not experiment.data.evaluation.label_map:
        fix = f"{Setting('data.evaluation.label_map', 'data/label_map.pbtxt')}"
        yield Remark("data.evaluation.label_map", "no label map for the evaluation records", fix)


@rule(schema.Experiment, on="training")
def early_stopping_needs_records(experiment: schema.Experiment) -> Remarks:
    """Early stopping depends on scores, and scores need records."""
    if experiment.train.early_stopping is not None and not experiment.data.evaluation.paths:
        problem = "early_stopping without evaluation records never stops"
        fix = (
            f"{Setting('data.evaluation.paths', ['data/val-*.tfrecord'])}, or take early_stopping "
            "out"
        )
        yield Remark("train.early_stopping", problem, fix)


@rule(schema.Experiment, on="training")
def cosine_ends(experiment: schema.Experiment) -> Remarks:
    """A cosine that ends with training needs an end of training."""
    schedule, path = experiment.train.optimizer.schedule, "train.optimizer.schedule.total_steps"
    if isinstance(schedule, schema.CosineSchedule) and schedule.total_steps is None:
        problem = "the cosine ends with training, and training has no end: train.steps is 0"
        yield Remark(path, problem, f"{Setting('train.steps', 'N')}, or {Setting(path, 'N')}")


@rule(schema.Experiment, on="training")
def samples_are_proposals(experiment: schema.Experiment) -> Remarks:
    """The second stage is trained with a part of the proposals."""
    model = experiment.model
    if not isinstance(model, schema.FasterRcnn) or model.boxes is None:
        return
    sample, proposals = model.boxes.sample_size, model.proposals.max_proposals
    if sample > proposals and model.boxes.hard_example_miner is None:
        path = "model.boxes.sample_size"
        problem = (
            f"sample_size {sample} is more than the {proposals} proposals of an image "
            "(model.proposals.max_proposals)"
        )
        yield Remark(
            path, problem, f"{Setting(path, proposals)}, or raise model.proposals.max_proposals"
        )


@rule(schema.Experiment, on="training")
def paths_are_real(experiment: schema.Experiment) -> Remarks:
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
            yield Remark(path, f"{text!r} still holds the placeholder {placeholder[0]}", remedy)
        elif _URL.match(text) and not path.endswith((".paths", ".label_map")):
            first = "" if path == _WRITTEN else "copy it to this machine; "
            yield Remark(path, f"{text!r} is not a local file", first + remedy)


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
