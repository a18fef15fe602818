"""What was set and does nothing, because another field has the say."""

from collections.abc import Iterator, Mapping

from stillbox.checking.advice.advice import Advice, Counsel, of_one_stage
from stillbox.experiment.schema import (
    ConvolutionalHead,
    Experiment,
    OneStage,
    SsdAnchors,
    WeightSharedHead,
)


@of_one_stage
def dropout_drops(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """Dropout is on and keeps a part, or it is off."""
    head, path = model.head, "model.head.dropout_keep_probability"
    if not isinstance(head, ConvolutionalHead | WeightSharedHead):
        return
    if head.dropout and head.dropout_keep_probability == 1.0:
        yield Advice(
            "note",
            path,
            "dropout that keeps everything drops nothing",
            "--set model.head.dropout=false",
        )
    if not head.dropout and path in origins and head.dropout_keep_probability < 1.0:
        yield Advice(
            "note",
            path,
            f"dropout_keep_probability {head.dropout_keep_probability:g} has no effect while "
            "dropout is false",
            "take it out, or --set model.head.dropout=true",
        )


def clipping_clips(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
    """A limit of 0 is no limit."""
    if "train.gradient_clip_norm" in origins and not experiment.train.gradient_clip_norm:
        yield Advice(
            "note",
            "train.gradient_clip_norm",
            "0 leaves gradients as they are: it does not clip them to 0",
        )


@of_one_stage
def penalties_are_added(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """Regularisers count only where the loss takes them."""
    penalties = [conv.regularizer for conv in model.convolutions().values()]
    if not experiment.train.regularization and any(penalties):
        yield Advice(
            "warning",
            "train.regularization",
            "regularization (add_regularization_loss) is false, so that no regularizer counts",
            "--set train.regularization=true, or take the regularizers out",
        )


@of_one_stage
def scales_are_used(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """Explicit scales replace the range of scales."""
    anchors = model.anchors
    given = [name for name in ("min_scale", "max_scale") if f"model.anchors.{name}" in origins]
    if isinstance(anchors, SsdAnchors) and anchors.scales and given:
        yield Advice(
            "note",
            f"model.anchors.{given[0]}",
            f"{' and '.join(given)} have no effect beside scales",
            "take one or the other out",
        )


def first_weights_are_named(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
    """How to read a checkpoint matters only where there is one."""
    if experiment.train.fine_tune.checkpoint:
        return
    for name in ("scope", "load_heads", "min_loaded", "skip"):
        path = f"train.fine_tune.{name}"
        # A file that says from_detection_checkpoint: false says nothing.
        if path in origins and name != "load_heads":
            yield Advice(
                "note",
                path,
                f"{name} has no effect: no checkpoint is named, training starts from random "
                "weights",
                "--set train.fine_tune.checkpoint=PATH",
            )
            return


def evaluations_happen(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
    """An interval longer than training is no interval."""
    every, steps = experiment.train.evaluate_every, experiment.train.steps
    if every > steps > 0:
        yield Advice(
            "note",
            "train.evaluate_every",
            f"evaluate_every {every} is more than the {steps} steps: the only evaluation is the "
            "one at the end",
        )


UNUSED_COUNSELS: tuple[Counsel, ...] = (
    dropout_drops,
    clipping_clips,
    penalties_are_added,
    scales_are_used,
    first_weights_are_named,
    evaluations_happen,
)
"""All of them."""
