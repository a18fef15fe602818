"""Can this be learnt: losses, scores, the balance of background and objects, targets."""

from collections.abc import Iterator, Mapping

from stillbox.checking.advice.advice import Advice, Counsel, of_one_stage
from stillbox.experiment.schema import (
    L1,
    L2,
    ArgmaxMatcher,
    BipartiteMatcher,
    Experiment,
    OneStage,
    SigmoidFocalLoss,
    SoftmaxAgainstLogitsLoss,
    SoftmaxLoss,
)

_SOFTMAX = (SoftmaxLoss, SoftmaxAgainstLogitsLoss)
# A penalty above this presses kernels to zero; configs that train have 1e-5 to 1e-3.
_LARGE_PENALTY = 0.01
# Above it whole parts of the precision-recall curve are missing.
_HIGH_THRESHOLD = 0.1


@of_one_stage
def background_is_balanced(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """Thousands of background anchors for each object drown it (the seed's anchor sampling)."""
    loss = model.loss
    if loss.hard_example_miner is None and not isinstance(loss.classification, SigmoidFocalLoss):
        yield Advice(
            "warning",
            "model.loss.classification",
            f"the {loss.classification.kind} loss counts every background anchor alike: neither a "
            "focal loss nor hard_example_miner holds them down",
            "--set 'model.loss.classification={kind: sigmoid_focal, alpha: 0.25, gamma: 2.0}'",
        )


@of_one_stage
def focal_loss_has_alpha(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """An alpha that nobody set is no alpha at all (fact sheet 1.1)."""
    classification = model.loss.classification
    if isinstance(classification, SigmoidFocalLoss) and classification.alpha is None:
        yield Advice(
            "note",
            "model.loss.classification",
            "without alpha the focal loss weighs objects and background alike; published configs "
            "have .25",
            "--set model.loss.classification.alpha=0.25",
        )


@of_one_stage
def scores_fit_the_loss(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """Scores come out of logits as the loss understood them."""
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


@of_one_stage
def bias_reaches_the_loss(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """A softmax does not see what is added to all logits."""
    bias, loss = getattr(model.head, "class_bias_init", 0.0), model.loss.classification
    if bias and isinstance(loss, _SOFTMAX):
        yield Advice(
            "warning",
            "model.head.class_bias_init",
            f"class_bias_init {bias:g} has no effect with a {loss.kind} loss: it moves the logits "
            "of all classes alike",
            "--set model.head.class_bias_init=0",
        )


@of_one_stage
def losses_count(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """Both halves of a detector are trained."""
    for name in ("classification_weight", "localization_weight"):
        if getattr(model.loss, name) == 0.0:
            yield Advice(
                "warning",
                f"model.loss.{name}",
                f"{name} 0: this half of the detector is never trained",
                f"--set model.loss.{name}=1",
            )


@of_one_stage
def penalties_are_small(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """A regulariser without a weight has the format's default, 1.0."""
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


@of_one_stage
def every_box_has_an_anchor(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """Boxes that no anchor resembles enough are background, unless they are forced."""
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


@of_one_stage
def curves_are_whole(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """AP is about all scores; what a picture shows is `evaluation.min_score`."""
    threshold = model.postprocessing.nms.score_threshold
    if threshold > _HIGH_THRESHOLD:
        yield Advice(
            "note",
            "model.postprocessing.nms.score_threshold",
            f"detections up to a score of {threshold:g} are thrown away before they are scored, "
            "which lowers AP",
            "--set model.postprocessing.nms.score_threshold=1e-8",
        )


@of_one_stage
def static_forms_exist(
    experiment: Experiment, model: OneStage, origins: Mapping[str, str]
) -> Iterator[Advice]:
    """What the originals could not run on a TPU, and people have learnt to leave out."""
    sentence = "the originals could not run it on a TPU; here it is a compiled, fixed-shape step"
    miner = model.loss.hard_example_miner
    # Without comparing boxes it is SSD's own mining, which always had a static form.
    if miner is not None and miner.iou_threshold < 1.0:
        yield Advice("note", "model.loss.hard_example_miner", f"hard_example_miner: {sentence}")
    if isinstance(model.matcher, BipartiteMatcher):
        yield Advice("note", "model.matcher", f"bipartite_matcher: {sentence}")


TARGET_COUNSELS: tuple[Counsel, ...] = (
    background_is_balanced,
    focal_loss_has_alpha,
    scores_fit_the_loss,
    bias_reaches_the_loss,
    losses_count,
    penalties_are_small,
    every_box_has_an_anchor,
    curves_are_whole,
    static_forms_exist,
)
"""All of them."""
