"""The loss `matched`: targets, two losses of each anchor, mining, normalisation.

The arithmetic is that of `SSDMetaArch.loss` (`object_detection/meta_architectures`).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int

from stillbox.boxes.matchers import Targets
from stillbox.boxes.sampling import mine_hard_examples
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.detector import LossOutput, Predictions, Taught
from stillbox.models.targets import build_box_coder, decode_for, targets_of_batch
from stillbox.models.variables import Arrays

Anchors = Float[np.ndarray, "A 4"]
AnchorLosses = Float32[Array, "B A"]


def batch_targets(
    batch: Batch, anchors: Anchors, model: schema.OneStage, level_sizes: tuple[int, ...] = ()
) -> Targets:
    """Returns the targets of a batch; padding rows have weights of 0.

    `level_sizes` are the numbers of anchors of the feature maps; empty: there is one map.
    """
    loss = _loss_of(model)
    return targets_of_batch(
        batch,
        anchors,
        matcher=model.matcher,
        similarity=model.similarity,
        box_coder=model.box_coder,
        input_size=model.resizer.input_size,
        level_sizes=level_sizes,
        num_classes=model.num_classes,
        background_class=model.background_class,
        encode_background_as_zeros=loss.encode_background_as_zeros,
        negative_class_weight=loss.negative_class_weight,
    )


def _loss_of(model: schema.OneStage) -> schema.Loss:
    assert isinstance(model.loss, schema.Loss)
    return model.loss


class LossParts(NamedTuple):
    """The terms of the loss, weighted and normalised."""

    classification: Float32[Array, ""]
    localization: Float32[Array, ""]
    matched_anchors: Float32[Array, ""]
    """Anchors of the batch that are assigned to a ground-truth box; not minimised."""
    average: Float32[Array, ""]
    """The next `MatchAverage.value`; 0 without an average."""
    divisors: Mapping[str, Float32[Array, "R"]]
    """Matches and images of each replica."""


class MatchAverage(NamedTuple):
    """Moving average of the number of matches that the losses are divided by."""

    value: Float32[Array, ""] | float = 0.0
    """The average after `steps` batches, 0 before the first."""
    steps: Int[Array, ""] | int = 0


INITIAL_AVERAGE = MatchAverage()
"""The average before the first batch."""


# Entries of the divisors; the first one is that of the loss state too, with the moving average.
_MATCHES, _IMAGES = "matches", "images"


def initial_loss_state(loss: schema.DetectorLoss) -> Arrays:
    """Returns the moving average of matches, if the loss is divided by one."""
    return {_MATCHES: jnp.zeros(())} if loss.normalizer_momentum else {}


@implements(schema.Loss)
def matched_loss(
    config: schema.Loss,
    predictions: Predictions,
    batch: Batch,
    anchors: Anchors,
    model: schema.OneStage,
    loss_state: Arrays,
    *,
    step: Int[Array, ""],
    replicas: int,
    level_sizes: tuple[int, ...],
    taught: Taught | None = None,
    divisors: Mapping[str, Array] | None = None,
) -> LossOutput:
    """Returns `detection_loss` as `Detector.loss` does."""
    assert taught is None
    parts = detection_loss(
        predictions,
        batch,
        anchors,
        model,
        MatchAverage(loss_state.get(_MATCHES, 0.0), step),
        replicas=replicas,
        level_sizes=level_sizes,
        divisors=divisors,
    )
    terms = {"classification_loss": parts.classification, "localization_loss": parts.localization}
    state = dict.fromkeys(loss_state, parts.average)
    metrics = {"matched_anchors": parts.matched_anchors}
    return LossOutput(terms, metrics, state, parts.divisors)


@jax.named_scope("losses")
def detection_loss(
    predictions: Predictions,
    batch: Batch,
    anchors: Anchors,
    model: schema.OneStage,
    average: MatchAverage = INITIAL_AVERAGE,
    *,
    replicas: int = 1,
    level_sizes: tuple[int, ...] = (),
    divisors: Mapping[str, Float32[Array, "R"]] | None = None,
) -> LossParts:
    """Returns the loss of a batch.

    Args:
        anchors: normalised to the network input.
        average: of the batches before, if the losses are divided by one.
        replicas: equal parts of the batch, if losses are normalised per replica.
        level_sizes: see `batch_targets`.
        divisors: see `Detector.loss`.
    """
    # Losses of each anchor, [B, A].
    loss = _loss_of(model)
    targets = batch_targets(batch, anchors, model, level_sizes)
    classification = _classification_losses(predictions.class_logits, targets, loss)
    localization = _localization_losses(
        predictions.box_encodings, targets, jnp.asarray(anchors), model
    )
    if loss.hard_example_miner is not None:
        mask = _hard_example_mask(
            predictions, targets, classification, localization, anchors, model
        )
        classification, localization = classification * mask, localization * mask

    # Normalisation, [B, 1].
    parts = replicas if loss.normalizer == "per_replica" else 1
    own = _count(targets, batch, parts)
    whole = own if divisors is None else divisors
    matches = jnp.sum(targets.box_weights, axis=1, keepdims=True)
    if not loss.normalize_per_image:
        matches = _of_each_image(whole[_MATCHES], matches)
    matches, value = _average_matches(
        matches + loss.added_matches, average, loss.normalizer_momentum
    )
    weights = _normalizing_weights(matches, _of_each_image(whole[_IMAGES], matches), loss, parts)
    code_size = model.box_coder.code_size if loss.normalize_localization_by_code_size else 1
    return LossParts(
        classification=loss.classification_weight * jnp.sum(classification * weights),
        localization=loss.localization_weight * jnp.sum(localization * weights) / code_size,
        matched_anchors=jnp.sum(targets.box_weights > 0).astype(jnp.float32),
        average=value,
        divisors=own,
    )


def _count(targets: Targets, batch: Batch, replicas: int) -> dict[str, Float32[Array, "R"]]:
    """Returns the matches and the images of each replica; padding rows are no images."""
    matches = jnp.sum(targets.box_weights, axis=1)
    values = {_MATCHES: matches, _IMAGES: jnp.asarray(batch.image_weights)}
    return {name: jnp.sum(one.reshape(replicas, -1), axis=1) for name, one in values.items()}


def _of_each_image(sums: Float32[Array, "R"], like: Float32[Array, "B 1"]) -> Float32[Array, "B 1"]:
    """Returns for each of B images the sum of its replica."""
    parts = len(sums), len(like) // len(sums)
    return jnp.broadcast_to(sums[:, None], parts).reshape(like.shape)


def _average_matches(
    matches: Float32[Array, "B 1"], average: MatchAverage, momentum: float
) -> tuple[Float32[Array, "B 1"], Float32[Array, ""]]:
    """Returns the averaged number of matches, and the next average.

    The average starts at 0, which weighs `momentum^n` after n batches; it is divided by the rest,
    as in TF1's `assign_moving_average`.
    """
    if not momentum:
        return matches, jnp.zeros(())
    # One number for the whole batch, as the rules of the schema demand.
    value = momentum * average.value + (1.0 - momentum) * matches[0, 0]
    counted = -jnp.expm1((average.steps + 1) * math.log(momentum))
    return jnp.broadcast_to(value / counted, matches.shape), value


def _normalizing_weights(
    matches: Float32[Array, "B 1"],
    images: Float32[Array, "B 1"],
    loss: schema.Loss,
    replicas: int,
) -> Float32[Array, "B 1"]:
    """Returns the factors of each image's targets; the losses of `replicas` are averaged.

    `images` are those of the replica of each image.
    """
    # With the floor of 1, images without objects still train the background.
    weights = (
        1.0 / jnp.maximum(matches, 1.0) if loss.normalize_by_matches else jnp.ones_like(matches)
    )
    if loss.normalize_per_image:
        weights = weights / jnp.maximum(images, 1.0)
    return weights / replicas


def _classification_losses(
    logits: Float32[Array, "B A C"], targets: Targets, loss: schema.Loss
) -> AnchorLosses:
    weights = targets.class_weights
    if loss.class_weights:
        # `class_weights` are those of the foreground; the background, if any, keeps 1.
        background = logits.shape[-1] - len(loss.class_weights)
        weights = weights[..., None] * jnp.asarray((1.0,) * background + loss.class_weights)
    function = implementation_of(loss.classification)
    weighted: Array = function(loss.classification, logits, targets.class_targets, weights)
    return weighted


def _localization_losses(
    encodings: Float32[Array, "B A S"],
    targets: Targets,
    anchors: Float[Array, "A 4"],
    model: schema.OneStage,
) -> AnchorLosses:
    config, input_size = _loss_of(model), model.resizer.input_size
    coder = build_box_coder(model.box_coder, input_size)
    loss: Array = implementation_of(config.localization)(
        config.localization,
        encodings,
        targets.box_targets,
        targets.box_weights,
        decode=decode_for(
            config.localization, lambda deltas: coder.decode(deltas, anchors), input_size
        ),
        skip_zeros=config.skip_zero_codes,
    )
    return loss


def _hard_example_mask(
    predictions: Predictions,
    targets: Targets,
    classification: AnchorLosses,
    localization: AnchorLosses,
    anchors: Anchors,
    model: schema.OneStage,
) -> AnchorLosses:
    """Returns 1 for the anchors that count."""
    loss = _loss_of(model)
    miner = loss.hard_example_miner
    assert miner is not None
    coder = build_box_coder(model.box_coder, model.resizer.input_size)
    boxes = coder.decode(predictions.box_encodings, jnp.asarray(anchors))
    return mine_hard_examples(
        localization,
        classification,
        boxes,
        targets.matches,
        classification_weight=loss.classification_weight,
        localization_weight=loss.localization_weight,
        **vars(miner),
    )
