"""Losses of classes, and the scores of detections, of one-stage models and of second stages."""

from typing import Protocol

from stillbox.checking.advice.advice import Advice, Findings, Origins, Scoring
from stillbox.experiment.schema import (
    Experiment,
    SigmoidFocalLoss,
    SoftmaxAgainstLogitsLoss,
    SoftmaxLoss,
)

SOFTMAX = (SoftmaxLoss, SoftmaxAgainstLogitsLoss)
"""Losses that compare classes with each other."""
STATIC_FORM = "the originals could not run it on a TPU; here it is a compiled, fixed-shape step"
"""Said of parts that configs may omit for this reason."""
# A higher threshold removes whole parts of the precision-recall curve.
_HIGH_THRESHOLD = 0.1


class Dropout(Protocol):
    """A section with dropout."""

    @property
    def dropout(self) -> bool:
        """Whether there is dropout."""

    @property
    def dropout_keep_probability(self) -> float:
        """Share of the features that it keeps."""


def focal_loss_has_alpha(experiment: Experiment, scoring: Scoring, origins: Origins) -> Findings:
    """Without alpha the loss has no class weights (`object_detection/core/losses.py`)."""
    classification, path = scoring.loss.classification, f"{scoring.loss_path}.classification"
    if isinstance(classification, SigmoidFocalLoss) and classification.alpha is None:
        yield Advice(
            "note",
            path,
            "without alpha the focal loss weighs objects and background alike; published configs "
            "have .25",
            f"--set {path}.alpha=0.25",
        )


def scores_fit_the_loss(experiment: Experiment, scoring: Scoring, origins: Origins) -> Findings:
    """Scores are computed from logits by the function that the loss assumes."""
    path = f"{scoring.path}.postprocessing.score_converter"
    converter, loss = scoring.postprocessing.score_converter, scoring.loss.classification
    fitting = "softmax" if isinstance(loss, SOFTMAX) else "sigmoid"
    if converter != fitting:
        yield Advice(
            "warning",
            path,
            f"score_converter {converter} after a {loss.kind} loss: scores are no probabilities",
            f"--set {path}={fitting}",
        )


def losses_count(experiment: Experiment, scoring: Scoring, origins: Origins) -> Findings:
    """Classification and localization are trained."""
    for name in ("classification_weight", "localization_weight"):
        if getattr(scoring.loss, name) == 0.0:
            path = f"{scoring.loss_path}.{name}"
            what = f"{name} 0: this half of the detector is never trained"
            yield Advice("warning", path, what, f"--set {path}=1")


def curves_are_whole(experiment: Experiment, scoring: Scoring, origins: Origins) -> Findings:
    """AP needs detections of all scores; `evaluation.min_score` limits pictures."""
    path = f"{scoring.path}.postprocessing.nms.score_threshold"
    threshold = scoring.postprocessing.nms.score_threshold
    if threshold > _HIGH_THRESHOLD:
        yield Advice(
            "note",
            path,
            f"detections up to a score of {threshold:g} are thrown away before they are scored, "
            "which lowers AP",
            f"--set {path}=1e-8",
        )


def mining_is_static(experiment: Experiment, scoring: Scoring, origins: Origins) -> Findings:
    """The originals could not mine on a TPU, so that configs may omit it."""
    miner = scoring.loss.hard_example_miner
    # Without comparing boxes it is SSD's own mining, which the originals run on a TPU.
    if miner is not None and miner.iou_threshold < 1.0:
        path = f"{scoring.loss_path}.hard_example_miner"
        yield Advice("note", path, f"hard_example_miner: {STATIC_FORM}")


def dropout_of(path: str, section: Dropout, origins: Origins) -> Findings:
    """Yields advice on the dropout of a section: it is on and drops something, or it is off."""
    keep, field = section.dropout_keep_probability, f"{path}.dropout_keep_probability"
    if section.dropout and keep == 1.0:
        fix = f"--set {path}.dropout=false"
        yield Advice("note", field, "dropout that keeps everything drops nothing", fix)
    if not section.dropout and field in origins and keep < 1.0:
        yield Advice(
            "note",
            field,
            f"dropout_keep_probability {keep:g} has no effect while dropout is false",
            f"take it out, or --set {path}.dropout=true",
        )
