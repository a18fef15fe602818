"""The loss of one-stage detectors: targets, two losses of each anchor, mining, normalisation.

The arithmetic is that of `SSDMetaArch.loss` (`object_detection/meta_architectures`).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.matchers import Targets
from stillbox.boxes.sampling import mine_hard_examples
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.detector import Predictions
from stillbox.models.targets import build_box_coder, targets_of_batch


def batch_targets(batch: Batch, anchors: np.ndarray, model: schema.OneStage) -> Targets:
    """Returns the targets of a batch for anchors `[A, 4]`; padding rows have weights of 0."""
    return targets_of_batch(
        batch,
        anchors,
        matcher=model.matcher,
        similarity=model.similarity,
        box_coder=model.box_coder,
        input_size=model.resizer.input_size,
        num_classes=model.num_classes,
        background_class=model.background_class,
        encode_background_as_zeros=model.loss.encode_background_as_zeros,
        negative_class_weight=model.loss.negative_class_weight,
    )


class LossParts(NamedTuple):
    """The terms of the loss, float32 scalars, weighted and normalised."""

    classification: jax.Array
    localization: jax.Array
    matched_anchors: jax.Array
    """Anchors of the batch that are assigned to a ground-truth box; not minimised."""
    average: jax.Array
    """The next `MatchAverage.value`; 0 without an average."""


class MatchAverage(NamedTuple):
    """Moving average of the number of matches that the losses are divided by."""

    value: jax.Array | float = 0.0
    """float32 scalar after `steps` batches, 0 before the first."""
    steps: jax.Array | int = 0
    """int32 scalar."""


INITIAL_AVERAGE = MatchAverage()
"""The average before the first batch."""


@jax.named_scope("losses")
def detection_loss(
    predictions: Predictions,
    batch: Batch,
    anchors: np.ndarray,
    model: schema.OneStage,
    average: MatchAverage = INITIAL_AVERAGE,
    *,
    replicas: int = 1,
) -> LossParts:
    """Returns the loss of a batch.

    Args:
        anchors: `[A, 4]`, normalised to the network input.
        average: of the batches before, if the losses are divided by one.
        replicas: equal parts of the batch, if losses are normalised per replica.
    """
    # Losses of each anchor, [B, A].
    loss = model.loss
    targets = batch_targets(batch, anchors, model)
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
    matches = _count_matches(targets, loss, parts)
    matches, value = _average_matches(matches, average, loss.normalizer_momentum)
    weights = _normalizing_weights(matches, jnp.asarray(batch.image_weights), loss, parts)
    code_size = model.box_coder.code_size if loss.normalize_localization_by_code_size else 1
    return LossParts(
        classification=loss.classification_weight * jnp.sum(classification * weights),
        localization=loss.localization_weight * jnp.sum(localization * weights) / code_size,
        matched_anchors=jnp.sum(targets.box_weights > 0).astype(jnp.float32),
        average=value,
    )


def _count_matches(targets: Targets, loss: schema.Loss, replicas: int) -> jax.Array:
    """Returns the number of matches that divides each image's targets, `[B, 1]`."""
    matches = jnp.sum(targets.box_weights, axis=1, keepdims=True)
    if not loss.normalize_per_image:
        matches = _sum_over_replica(matches, replicas)
    return matches + loss.added_matches


def _average_matches(
    matches: jax.Array, average: MatchAverage, momentum: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the averaged number of matches `[B, 1]`, and the next average.

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
    matches: jax.Array, image_weights: jax.Array, loss: schema.Loss, replicas: int
) -> jax.Array:
    """Returns the factors of each image's targets, `[B, 1]`.

    `matches` are `[B, 1]`, `image_weights` `[B]` with 0 for padding rows; the losses of `replicas`
    are averaged.
    """
    # With the floor of 1, images without objects still train the background.
    weights = (
        1.0 / jnp.maximum(matches, 1.0) if loss.normalize_by_matches else jnp.ones_like(matches)
    )
    if loss.normalize_per_image:
        images = _sum_over_replica(image_weights[:, None], replicas)
        weights = weights / jnp.maximum(images, 1.0)
    return weights / replicas


def _sum_over_replica(values: jax.Array, replicas: int) -> jax.Array:
    """Returns for each image the sum of `values` `[B, 1]` over all images of its replica."""
    parts = values.reshape(replicas, -1)
    sums = jnp.sum(parts, axis=1, keepdims=True)
    return jnp.broadcast_to(sums, parts.shape).reshape(values.shape)


def _classification_losses(logits: jax.Array, targets: Targets, loss: schema.Loss) -> jax.Array:
    """Returns `[B, A]`, weighted."""
    weights = targets.class_weights
    if loss.class_weights:
        # `class_weights` are those of the foreground; the background slot, if any, keeps 1.
        background = logits.shape[-1] - len(loss.class_weights)
        weights = weights[..., None] * jnp.asarray((1.0,) * background + loss.class_weights)
    function = implementation_of(loss.classification)
    weighted: jax.Array = function(loss.classification, logits, targets.class_targets, weights)
    return weighted


def _localization_losses(
    encodings: jax.Array, targets: Targets, anchors: jax.Array, model: schema.OneStage
) -> jax.Array:
    """Returns `[B, A]`, weighted."""
    coder = build_box_coder(model.box_coder, model.resizer.input_size)
    loss: jax.Array = implementation_of(model.loss.localization)(
        model.loss.localization,
        encodings,
        targets.box_targets,
        targets.box_weights,
        decode=lambda codes: coder.decode(codes, anchors),
        skip_zeros=model.loss.skip_zero_codes,
    )
    return loss


def _hard_example_mask(
    predictions: Predictions,
    targets: Targets,
    classification: jax.Array,
    localization: jax.Array,
    anchors: np.ndarray,
    model: schema.OneStage,
) -> jax.Array:
    """Returns `[B, A]`, 1 for the anchors that count."""
    miner = model.loss.hard_example_miner
    assert miner is not None
    coder = build_box_coder(model.box_coder, model.resizer.input_size)
    boxes = coder.decode(predictions.box_encodings, jnp.asarray(anchors))
    return mine_hard_examples(
        localization,
        classification,
        boxes,
        targets.matches,
        classification_weight=model.loss.classification_weight,
        localization_weight=model.loss.localization_weight,
        **vars(miner),
    )
