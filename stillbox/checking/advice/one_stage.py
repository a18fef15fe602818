"""Losses, scores, targets and anchors of one-stage models."""

from stillbox.checking.advice.advice import Advice, Findings, Origins
from stillbox.experiment.schema import (
    L1,
    L2,
    ArgmaxMatcher,
    BipartiteMatcher,
    ConvolutionalHead,
    Experiment,
    OneStage,
    SigmoidFocalLoss,
    SoftmaxAgainstLogitsLoss,
    SoftmaxLoss,
    SsdAnchors,
    WeightSharedHead,
)

_SOFTMAX = (SoftmaxLoss, SoftmaxAgainstLogitsLoss)
# A larger penalty drives kernels to zero; configs that train have 1e-5 to 1e-3.
_LARGE_PENALTY = 0.01
# A higher threshold removes whole parts of the precision-recall curve.
_HIGH_THRESHOLD = 0.1


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


def focal_loss_has_alpha(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Without alpha the loss has no class weights (`object_detection/core/losses.py`)."""
    classification = model.loss.classification
    if isinstance(classification, SigmoidFocalLoss) and classification.alpha is None:
        yield Advice(
            "note",
            "model.loss.classification",
            "without alpha the focal loss weighs objects and background alike; published configs "
            "have .25",
            "--set model.loss.classification.alpha=0.25",
        )


def scores_fit_the_loss(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Scores are computed from logits by the function that the loss assumes."""
    converter = model.postprocessing.score_converter
    loss = model.loss.classification
    fitting = "softmax" if isinstance(loss, _SOFTMAX) else "sigmoid"
    if converter != fitting:
        yield Advice(
            "warning",
            "model.postprocessing.score_converter",
            f"score_converter {converter} after a {loss.kind} loss: scores are no probabilities",
            f"--set model.postprocessing.score_converter={fitting}",
        )


def bias_reaches_the_loss(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """A softmax does not change when the same number is added to all logits."""
    bias, loss = getattr(model.head, "class_bias_init", 0.0), model.loss.classification
    if bias and isinstance(loss, _SOFTMAX):
        yield Advice(
            "warning",
            "model.head.class_bias_init",
            f"class_bias_init {bias:g} has no effect with a {loss.kind} loss: it moves the logits "
            "of all classes alike",
            "--set model.head.class_bias_init=0",
        )


def losses_count(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Classification and localization are trained."""
    for name in ("classification_weight", "localization_weight"):
        if getattr(model.loss, name) == 0.0:
            yield Advice(
                "warning",
                f"model.loss.{name}",
                f"{name} 0: this half of the detector is never trained",
                f"--set model.loss.{name}=1",
            )


def penalties_are_small(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """A regularizer without a weight has the format's default, 1.0."""
    for name, conv in model.convolutions().items():
        penalty = conv.regularizer
        if isinstance(penalty, L1 | L2) and penalty.weight > _LARGE_PENALTY:
            path = f"model.{name}.conv.regularizer.weight"
            default = "" if path in origins else ", the format's default,"
            yield Advice(
                "warning",
                path,
                f"a weight of {penalty.weight:g}{default} presses all kernels to zero",
                f"--set {path}=4e-5",
            )


def penalties_are_added(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Regularizers have an effect only if the loss includes them."""
    penalties = [conv.regularizer for conv in model.convolutions().values()]
    if not experiment.train.regularization and any(penalties):
        yield Advice(
            "warning",
            "train.regularization",
            "regularization (add_regularization_loss) is false, so that no regularizer counts",
            "--set train.regularization=true, or take the regularizers out",
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


def curves_are_whole(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """AP needs detections of all scores; `evaluation.min_score` limits pictures."""
    threshold = model.postprocessing.nms.score_threshold
    if threshold > _HIGH_THRESHOLD:
        yield Advice(
            "note",
            "model.postprocessing.nms.score_threshold",
            f"detections up to a score of {threshold:g} are thrown away before they are scored, "
            "which lowers AP",
            "--set model.postprocessing.nms.score_threshold=1e-8",
        )


def static_forms_exist(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Parts that the originals could not run on a TPU, so that configs may omit them."""
    sentence = "the originals could not run it on a TPU; here it is a compiled, fixed-shape step"
    miner = model.loss.hard_example_miner
    # Without comparing boxes it is SSD's own mining, which the originals run on a TPU.
    if miner is not None and miner.iou_threshold < 1.0:
        yield Advice("note", "model.loss.hard_example_miner", f"hard_example_miner: {sentence}")
    if isinstance(model.matcher, BipartiteMatcher):
        yield Advice("note", "model.matcher", f"bipartite_matcher: {sentence}")


def dropout_drops(experiment: Experiment, model: OneStage, origins: Origins) -> Findings:
    """Dropout is on and drops something, or it is off."""
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
