"""The loss `matched`: targets, two losses of each anchor, mining, normalisation.

The arithmetic is as in `SSDMetaArch.loss` (`object_detection/meta_architectures`).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32

from stillbox.boxes.matchers import Targets
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.detector import LossInputs, LossOutput, Predictions
from stillbox.models.targets import (
    build_box_coder,
    decode_for,
    mask_of_hard_examples,
    targets_of_batch,
)
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


# Entries of the divisors; the loss state has the first one too, the moving average.
_MATCHES, _IMAGES = "matches", "images"


def initial_loss_state(loss: schema.DetectorLoss) -> Arrays:
    """Returns the moving average of matches, if the loss is divided by one."""
    return {_MATCHES: jnp.zeros(())} if loss.normalizer_momentum else {}


@implements(schema.Loss)
@jax.named_scope("losses")
def matched_loss(
    config: schema.Loss,
    model: schema.OneStage,
    predictions: Predictions,
    anchors: Anchors,
    level_sizes: tuple[int, ...],
    inputs: LossInputs,
) -> LossOutput:
    """Returns the loss of a batch; see `schema.DetectorLoss`."""
    assert inputs.taught is None
    # Losses of each anchor, [B, A].
    targets = batch_targets(inputs.batch, anchors, model, level_sizes)
    classification = _classification_losses(predictions.class_logits, targets, config)
    localization = _localization_losses(
        predictions.box_encodings, targets, jnp.asarray(anchors), model
    )
    if config.hard_example_miner is not None:
        coder = build_box_coder(model.box_coder, model.resizer.input_size)
        boxes = coder.decode(predictions.box_encodings, jnp.asarray(anchors))
        mask = mask_of_hard_examples(config, classification, localization, boxes, targets.matches)
        classification, localization = classification * mask, localization * mask

    # Normalisation, [B, 1].
    parts = inputs.replicas if config.normalizer == "per_replica" else 1
    counts = _count(targets, inputs.batch, parts)
    divisors = counts if inputs.divisors is None else inputs.divisors
    matches = jnp.sum(targets.box_weights, axis=1, keepdims=True)
    if not config.normalize_per_image:
        matches = _of_each_image(divisors[_MATCHES], matches)
    matches, state = _average_matches(
        matches + config.added_matches, inputs, config.normalizer_momentum
    )
    weights = _normalizing_weights(
        matches, _of_each_image(divisors[_IMAGES], matches), config, parts
    )
    code_size = model.box_coder.code_size if config.normalize_localization_by_code_size else 1
    class_loss = config.classification_weight * jnp.sum(classification * weights)
    box_loss = config.localization_weight * jnp.sum(localization * weights) / code_size
    terms = {"classification_loss": class_loss, "localization_loss": box_loss}
    # Not minimised: the anchors of the batch that are assigned to a ground-truth box.
    metrics = {"matched_anchors": jnp.sum(targets.box_weights > 0).astype(jnp.float32)}
    return LossOutput(terms, metrics, state, counts)


def _count(targets: Targets, batch: Batch, replicas: int) -> dict[str, Float32[Array, "R"]]:
    """Returns the matches and the images of each replica; padding rows are no images."""
    matches = jnp.sum(targets.box_weights, axis=1)
    values = {_MATCHES: matches, _IMAGES: jnp.asarray(batch.image_weights)}
    return {name: jnp.sum(each.reshape(replicas, -1), axis=1) for name, each in values.items()}


def _of_each_image(sums: Float32[Array, "R"], like: Float32[Array, "B 1"]) -> Float32[Array, "B 1"]:
    """Returns for each of B images the sum of its replica."""
    parts = len(sums), len(like) // len(sums)
    return jnp.broadcast_to(sums[:, None], parts).reshape(like.shape)


def _average_matches(
    matches: Float32[Array, "B 1"], inputs: LossInputs, momentum: float
) -> tuple[Float32[Array, "B 1"], Arrays]:
    """Returns the averaged number of matches, and the next state.

    The average starts at 0, which weighs `momentum^n` after n batches; it is divided by the rest,
    as in TF1's `assign_moving_average`.
    """
    if not momentum:
        return matches, {}
    # One number for the whole batch, as the rules of the schema demand.
    average = momentum * inputs.state[_MATCHES] + (1.0 - momentum) * matches[0, 0]
    counted = -jnp.expm1((inputs.step + 1) * math.log(momentum))
    return jnp.broadcast_to(average / counted, matches.shape), {_MATCHES: average}


def _normalizing_weights(
    matches: Float32[Array, "B 1"],
    images: Float32[Array, "B 1"],
    loss: schema.Loss,
    replicas: int,
) -> Float32[Array, "B 1"]:
    """Returns the factors of each image's targets; the losses of `replicas` are averaged.

    `images` are the images of the replica of each image.
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
    weights = weights_by_class(loss, targets.class_weights, logits.shape[-1])
    function = implementation_of(loss.classification)
    weighted: Array = function(loss.classification, logits, targets.class_targets, weights)
    return weighted


def weights_by_class(
    loss: schema.DetectorLoss, weights: Float32[Array, "B A"], slots: int
) -> Float32[Array, "B A"] | Float32[Array, "B A C"]:
    """Returns weights of anchors, multiplied by the factors of the classes if there are any."""
    if not loss.class_weights:
        return weights
    # `class_weights` are for the foreground; the background, if any, keeps 1.
    background = slots - len(loss.class_weights)
    return weights[..., None] * jnp.asarray((1.0,) * background + loss.class_weights)


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
