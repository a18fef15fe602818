"""Losses, targets and anchors of one-stage models."""

from stillbox.checking.advice.advice import Advice, Findings, Origins
from stillbox.checking.advice.scores import SOFTMAX, STATIC_FORM, dropout_of
from stillbox.experiment.schema import (
    ArgmaxMatcher,
    BipartiteMatcher,
    ConvolutionalHead,
    Experiment,
    OneStage,
    SigmoidFocalLoss,
    SsdAnchors,
    WeightSharedHead,
)


def background_is_balanced(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Thousands of background anchors for each object must not dominate the loss."""
    loss = model.loss
    if loss.hard_example_miner is None and not isinstance(loss.classification, SigmoidFocalLoss):
        yield Advice(
            "warning",
            "model.loss.classification",
            f"the {loss.classification.kind} loss counts every background anchor alike: neither a "
            "focal loss nor hard_example_miner reduces their weight",
            "--set 'model.loss.classification={kind: sigmoid_focal, alpha: 0.25, gamma: 2.0}'",
        )


def bias_reaches_the_loss(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """A softmax does not change when the same number is added to all logits."""
    bias, loss = getattr(model.head, "class_bias_init", 0.0), model.loss.classification
    if bias and isinstance(loss, SOFTMAX):
        yield Advice(
            "warning",
            "model.head.class_bias_init",
            f"class_bias_init {bias:g} has no effect with a {loss.kind} loss: it moves the logits "
            "of all classes alike",
            "--set model.head.class_bias_init=0",
        )


def every_box_has_an_anchor(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Boxes without a matching anchor are background, unless a match is forced."""
    matcher = model.matcher
    if (
        isinstance(matcher, ArgmaxMatcher)
        and not matcher.force_match_for_each_row
        and not matcher.ignore_thresholds
    ):
        yield Advice(
            "note",
            "model.matcher.force_match_for_each_row",
            f"a box that no anchor overlaps by {matcher.matched_threshold:g} is trained as "
            "background; `stillbox anchors` counts them",
            "--set model.matcher.force_match_for_each_row=true",
        )


def static_forms_exist(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """A part that the originals could not run on a TPU, so that configs may omit it."""
    if isinstance(model.matcher, BipartiteMatcher):
        yield Advice("note", "model.matcher", f"bipartite_matcher: {STATIC_FORM}")


def one_stage_dropout_drops(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Dropout is on and drops something, or it is off."""
    if isinstance(model.head, ConvolutionalHead | WeightSharedHead):
        yield from dropout_of("model.head", model.head, origins)


def scales_are_used(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
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
