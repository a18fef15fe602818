"""Rules about targets and losses."""

from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken, OneStageRule
from stillbox.experiment.schema import (
    ArgmaxMatcher,
    GiouLoss,
    IouLoss,
    NegSqDistSimilarity,
    OneStage,
    SigmoidFocalLoss,
)


def thresholds_are_ordered(model: OneStage) -> Iterator[Broken]:
    """The matcher's ignored band lies between background and match."""
    matcher, path = model.matcher, "model.matcher"
    if not isinstance(matcher, ArgmaxMatcher):
        return
    matched, unmatched = matcher.matched_threshold, matcher.unmatched_threshold
    if unmatched > matched:
        yield Broken(
            f"{path}.unmatched_threshold",
            f"unmatched_threshold {unmatched} is above matched_threshold {matched}",
            "lower it, or raise matched_threshold",
        )
    # Swapping needs a band between the thresholds to swap with.
    if unmatched == matched and not matcher.negatives_lower_than_unmatched:
        yield Broken(
            f"{path}.negatives_lower_than_unmatched",
            f"negatives_lower_than_unmatched false swaps background and ignored anchors, "
            f"but with both thresholds at {matched} no anchor would be background",
            "set it to true, or lower unmatched_threshold",
        )


def thresholds_can_be_reached(model: OneStage) -> Iterator[Broken]:
    """Overlaps lie in 0..1, and minus a distance is never above 0."""
    matcher, path = model.matcher, "model.matcher"
    if not isinstance(matcher, ArgmaxMatcher) or matcher.ignore_thresholds:
        return
    if isinstance(model.similarity, NegSqDistSimilarity):
        if matcher.matched_threshold > 0.0 and not matcher.force_match_for_each_row:
            yield Broken(
                f"{path}.matched_threshold",
                f"neg_sq_dist is never above 0, so that with matched_threshold "
                f"{matcher.matched_threshold} no anchor would be matched",
                "lower it, such as to -0.01, or set ignore_thresholds",
            )
        return
    for name in ("matched_threshold", "unmatched_threshold"):
        value = getattr(matcher, name)
        if not 0.0 <= value <= 1.0:
            yield Broken(
                f"{path}.{name}",
                f"{path}.{name} is {value}, but overlaps lie in 0..1",
                "give a value of at least 0 and at most 1",
            )


def focal_loss_has_no_miner(model: OneStage) -> Iterator[Broken]:
    """Both answer the same question in contradictory ways (fact sheet 1.3)."""
    loss = model.loss
    if loss.hard_example_miner is not None and isinstance(loss.classification, SigmoidFocalLoss):
        yield Broken(
            "model.loss.hard_example_miner",
            "hard_example_miner together with a focal loss: both choose the hard examples",
            "take the miner out, or use the plain sigmoid loss",
        )


def every_class_has_a_weight(model: OneStage) -> Iterator[Broken]:
    """Weights are given for all classes or for none."""
    weights, count = model.loss.class_weights, model.num_classes
    if weights and len(weights) != count:
        yield Broken(
            "model.loss.class_weights",
            f"{len(weights)} class_weights for {count} classes",
            "give one for each class, in the order of their ids, or none",
        )


def added_matches_are_divided_by(model: OneStage) -> Iterator[Broken]:
    """What is added to a number needs the number."""
    loss, path = model.loss, "model.loss.added_matches"
    if loss.added_matches and not loss.normalize_by_matches:
        yield Broken(
            path,
            f"added_matches {loss.added_matches} while normalize_by_matches is false: nothing is "
            "divided by the number of matches",
            f"--set {path}=0, or set normalize_by_matches to true",
        )


def moving_numbers_are_divided_by(model: OneStage) -> Iterator[Broken]:
    """One moving average of the matches of a batch needs them, and has no place for each image."""
    loss, path = model.loss, "model.loss.normalizer_momentum"
    if not loss.normalizer_momentum or (loss.normalize_by_matches and not loss.normalize_per_image):
        return
    other = "normalize_per_image" if loss.normalize_by_matches else "normalize_by_matches"
    value = str(other == "normalize_per_image").lower()
    yield Broken(
        path,
        f"normalizer_momentum {loss.normalizer_momentum} while {other} is {value}: it averages the "
        "matches of a whole batch",
        f"--set {path}=0, or change {other}",
    )


def moving_numbers_are_of_the_batch(model: OneStage) -> Iterator[Broken]:
    """The moving average of the matches is one number, and replicas would have one each."""
    loss, path = model.loss, "model.loss.normalizer_momentum"
    if loss.normalizer_momentum and loss.normalizer == "per_replica":
        yield Broken(
            path,
            f"normalizer_momentum {loss.normalizer_momentum} while normalizer is per_replica: it "
            "averages the matches of a whole batch",
            f"--set {path}=0, or --set model.loss.normalizer=global",
        )


def skipped_codes_are_compared(model: OneStage) -> Iterator[Broken]:
    """Losses of overlaps see boxes, not codes."""
    loss, path = model.loss, "model.loss.skip_zero_codes"
    if loss.skip_zero_codes and isinstance(loss.localization, IouLoss | GiouLoss):
        yield Broken(
            path,
            f"skip_zero_codes together with {loss.localization.kind}, which compares whole boxes",
            f"--set {path}=false, or take smooth_l1, l1 or l2",
        )


def background_has_a_target(model: OneStage) -> Iterator[Broken]:
    """One-hot on the background needs a slot for it."""
    if not model.background_class and not model.loss.encode_background_as_zeros:
        yield Broken(
            "model.background_class",
            "without a background class there is no slot that a background target could fill",
            "set model.loss.encode_background_as_zeros to true",
        )


TARGET_RULES: tuple[OneStageRule, ...] = (
    thresholds_are_ordered,
    thresholds_can_be_reached,
    focal_loss_has_no_miner,
    every_class_has_a_weight,
    added_matches_are_divided_by,
    moving_numbers_are_divided_by,
    moving_numbers_are_of_the_batch,
    skipped_codes_are_compared,
    background_has_a_target,
)
"""All of them."""
