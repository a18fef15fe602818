"""Rules about targets and losses."""

from collections.abc import Iterator

from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import (
    ArgmaxMatcher,
    BoxStage,
    GiouLoss,
    IouLoss,
    Loss,
    NegSqDistSimilarity,
    OneStage,
    ProposalStage,
    SigmoidFocalLoss,
)
from stillbox.printing import count_text


@rule(ArgmaxMatcher)
def thresholds_are_ordered(matcher: ArgmaxMatcher) -> Iterator[Broken]:
    """The matcher's ignored band lies between background and match."""
    matched, unmatched = matcher.matched_threshold, matcher.unmatched_threshold
    if unmatched > matched:
        yield Broken(
            "unmatched_threshold",
            f"unmatched_threshold {unmatched} is above matched_threshold {matched}",
            "lower it, or raise matched_threshold",
        )
    # Swapping needs a band between the thresholds to swap with.
    if unmatched == matched and not matcher.negatives_lower_than_unmatched:
        yield Broken(
            "negatives_lower_than_unmatched",
            f"negatives_lower_than_unmatched false swaps background and ignored anchors, "
            f"but with both thresholds at {matched} no anchor would be background",
            "set it to true, or lower unmatched_threshold",
        )


@rule(OneStage, ProposalStage, BoxStage)
def thresholds_can_be_reached(stage: OneStage | ProposalStage | BoxStage) -> Iterator[Broken]:
    """Overlaps lie in 0..1, and minus a distance is never above 0."""
    matcher = stage.matcher
    if not isinstance(matcher, ArgmaxMatcher) or matcher.ignore_thresholds:
        return
    if isinstance(stage.similarity, NegSqDistSimilarity):
        if matcher.matched_threshold > 0.0 and not matcher.force_match_for_each_row:
            yield Broken(
                "matcher.matched_threshold",
                f"neg_sq_dist is never above 0, so that with matched_threshold "
                f"{matcher.matched_threshold} no anchor would be matched",
                "lower it, such as to -0.01, or set ignore_thresholds",
            )
        return
    for name in ("matched_threshold", "unmatched_threshold"):
        value = getattr(matcher, name)
        if not 0.0 <= value <= 1.0:
            yield Broken(
                f"matcher.{name}",
                f"{name} is {value}, but overlaps lie in 0..1",
                "give a value of at least 0 and at most 1",
            )


@rule(Loss, BoxStage)
def focal_loss_has_no_miner(loss: Loss | BoxStage) -> Iterator[Broken]:
    """Both select hard examples, in contradictory ways."""
    if loss.hard_example_miner is not None and isinstance(loss.classification, SigmoidFocalLoss):
        yield Broken(
            "hard_example_miner",
            "hard_example_miner together with a focal loss: both choose the hard examples",
            "take the miner out, or use the plain sigmoid loss",
        )


@rule(OneStage)
def every_class_has_a_weight(model: OneStage) -> Iterator[Broken]:
    """Weights are given for all classes or for none."""
    weights, count = model.loss.class_weights, model.num_classes
    if weights and len(weights) != count:
        what = f"{len(weights)} class_weights for {count_text(count, 'class')}"
        fix = "give one for each class, in the order of their ids, or none"
        yield Broken("loss.class_weights", what, fix)


@rule(Loss)
def added_matches_are_divided_by(loss: Loss) -> Iterator[Broken]:
    """A number of matches is needed to add to."""
    if loss.added_matches and not loss.normalize_by_matches:
        yield Broken(
            "added_matches",
            f"added_matches {loss.added_matches} while normalize_by_matches is false: nothing is "
            "divided by the number of matches",
            "--set model.loss.added_matches=0, or set normalize_by_matches to true",
        )


@rule(Loss)
def moving_average_is_of_the_batch(loss: Loss) -> Iterator[Broken]:
    """The moving average of the matches is one number, for all images and all replicas."""
    if not loss.normalizer_momentum:
        return
    contradictions = {
        "normalize_by_matches is false": not loss.normalize_by_matches,
        "normalize_per_image is true": loss.normalize_by_matches and loss.normalize_per_image,
        "normalizer is per_replica": loss.normalizer == "per_replica",
    }
    for other in (other for other, holds in contradictions.items() if holds):
        name = other.partition(" ")[0]
        change = "--set model.loss.normalizer=global" if name == "normalizer" else f"change {name}"
        yield Broken(
            "normalizer_momentum",
            f"normalizer_momentum {loss.normalizer_momentum} while {other}: it averages the "
            "matches of a whole batch",
            f"--set model.loss.normalizer_momentum=0, or {change}",
        )


@rule(Loss)
def skipped_codes_are_compared(loss: Loss) -> Iterator[Broken]:
    """Losses of overlaps compare boxes, not codes."""
    if loss.skip_zero_codes and isinstance(loss.localization, IouLoss | GiouLoss):
        yield Broken(
            "skip_zero_codes",
            f"skip_zero_codes together with {loss.localization.kind}, which compares whole boxes",
            "--set model.loss.skip_zero_codes=false, or take smooth_l1, l1 or l2",
        )


@rule(OneStage)
def background_has_a_target(model: OneStage) -> Iterator[Broken]:
    """A one-hot target of the background needs a slot."""
    if not model.background_class and not model.loss.encode_background_as_zeros:
        yield Broken(
            "background_class",
            "without a background class there is no slot that a background target could fill",
            "set model.loss.encode_background_as_zeros to true",
        )
