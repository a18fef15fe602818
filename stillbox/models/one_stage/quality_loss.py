"""The loss `quality`: targets and weights follow from how well predicted boxes fit.

Losses and averages are as in `mmdet/models/dense_heads`: `atss_head.py`, `gfl_head.py`,
`tood_head.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Float32, Int32

from stillbox.boxes.adaptive_matching import alignment_targets
from stillbox.boxes.distributions import (
    centerness,
    distillation_loss,
    distribution_focal_loss,
)
from stillbox.boxes.geometry import iou
from stillbox.boxes.losses import sigmoid_cross_entropy
from stillbox.boxes.matchers import IGNORED, Frame, Predicted
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.detector import (
    AnyPredictions,
    LossInputs,
    LossOutput,
    RatedPredictions,
    Taught,
)
from stillbox.models.one_stage.loss import weights_by_class
from stillbox.models.targets import build_box_coder, decode_for, matches_of_batch

AnchorValues = Float32[Array, "B A"]

# The original sums what is distilled over the images of a GPU, of which its configs have two, and
# averages gradients over the GPUs. So a weight means the same for any number of images.
_SUMMED = 2.0


@implements(schema.QualityLoss)
@jax.named_scope("losses")
def quality_loss(
    config: schema.QualityLoss,
    model: schema.OneStage,
    predictions: AnyPredictions,
    anchors: Float[np.ndarray, "A 4"],
    level_sizes: tuple[int, ...],
    inputs: LossInputs,
) -> LossOutput:
    """Returns the loss of a batch; see `schema.DetectorLoss`.

    Sums are always of the whole batch, for any number of replicas. A teacher has the same anchors
    and the same bins.
    """
    divisors = None if inputs.divisors is None else _Sums(**inputs.divisors)
    arrays = _Arrays(
        predictions, inputs.batch, jnp.asarray(anchors, jnp.float32), inputs.taught, divisors
    )
    sizes = Frame(model.resizer.input_size, level_sizes)
    steady = partial(_terms, config, model, sizes)
    if config.initial is None:
        terms, sums = steady(arrays)
    else:
        initial = config.initial
        first = replace(
            config,
            classification=initial.classification,
            class_targets="one",
            empty_images_count=False,
            box_weights=initial.box_weights,
        )
        begins = partial(_terms, first, replace(model, matcher=initial.matcher), sizes)
        terms, sums = jax.lax.cond(inputs.step < initial.steps, begins, steady, arrays)
    metrics = {"matched_anchors": sums.matched}
    return LossOutput(terms, metrics, dict(inputs.state), sums._asdict())


class _Sums(NamedTuple):
    """Sums over the images of a batch that terms are divided by."""

    matched: Float32[Array, ""]
    """Matched anchors."""
    counted: Float32[Array, ""]
    """The same by weight, where an image without any may count as one."""
    weights: Float32[Array, ""]
    """Weights of the boxes."""
    aligned: Float32[Array, ""]
    """Targets `alignment`."""
    images: Float32[Array, ""]
    """Images, padding not counted."""


class _Arrays(NamedTuple):
    """What the terms are computed from."""

    predictions: AnyPredictions
    batch: Batch
    anchors: Float32[Array, "A 4"]
    taught: Taught | None
    sums: _Sums | None
    """Sums over the batch that these images are a part of; None: these images are the batch."""


class _Fit(NamedTuple):
    """How the predictions of anchors fit the boxes that they are assigned to."""

    matches: Int32[Array, "B A"]
    classes: Int32[Array, "B A"]
    """Classes of the assigned boxes. Here and below, anchors without one have values of any box."""
    boxes: Float32[Array, "B A 4"]
    """Ground truth."""
    weights: AnchorValues
    """Weights of these boxes."""
    predicted: Float32[Array, "B A 4"]
    overlaps: AnchorValues
    """IoU of both."""
    scores: Float32[Array, "B A C"]
    """Probabilities; no gradient flows through them, nor through the overlaps."""

    @property
    def matched(self) -> Bool[Array, "B A"]:
        """Which anchors are assigned to a box."""
        return self.matches >= 0


def _terms(
    config: schema.QualityLoss, model: schema.OneStage, frame: Frame, arrays: _Arrays
) -> tuple[dict[str, Array], _Sums]:
    """Returns the terms of the loss, and the sums of these images."""
    batch, predictions = arrays.batch, arrays.predictions
    fit = _fit(model, frame, arrays)
    image_weights = jnp.asarray(batch.image_weights, jnp.float32)[:, None]
    images = image_weights > 0.0
    matched = (fit.matched & images).astype(jnp.float32)
    # A background anchor counts as much as its image.
    shares = image_weights * jnp.where(fit.matched, fit.weights, 1.0)
    weighted = matched * shares
    aligned = _alignment(model.matcher, fit, batch.boxes.shape[1]) * matched
    weights = jax.lax.stop_gradient(_box_weights(config, fit, arrays.anchors, aligned))
    weights *= weighted
    sums = _Sums(
        matched=matched.sum(),
        counted=_matches(config, weighted, images),
        weights=weights.sum(),
        aligned=(aligned * shares).sum(),
        images=images.sum(dtype=jnp.float32),
    )
    whole = sums if arrays.sums is None else arrays.sums
    box_sum = jnp.maximum(whole.weights, config.least_box_weight)
    count = jnp.maximum(whole.counted, 1.0)

    targets = {"one": matched, "overlap": fit.overlaps * matched, "alignment": aligned}
    values = targets[config.class_targets]
    class_sum = jnp.maximum(whole.aligned, 1.0) if config.class_targets == "alignment" else count
    seen = images & (fit.matches != IGNORED)
    classes = implementation_of(config.classification)(
        config.classification,
        predictions.class_logits,
        jax.nn.one_hot(fit.classes, model.num_classes, dtype=jnp.float32) * values[..., None],
        weights_by_class(config, seen * shares, model.num_classes),
    )
    boxes = _box_losses(config, frame, fit, weights)
    terms = {
        "classification_loss": config.classification_weight * classes.sum() / class_sum,
        "localization_loss": config.localization_weight * boxes.sum() / box_sum,
    }
    if config.distribution_weight:
        sides = _distribution_losses(model, arrays, fit)
        share = config.distribution_weight / 4.0 / box_sum
        terms["distribution_loss"] = share * jnp.sum(sides * weights[..., None])
    if arrays.taught is not None:
        sides = _divergences(predictions.box_encodings, arrays.taught)
        share = arrays.taught.weight / 4.0 * _SUMMED / jnp.maximum(whole.images, 1.0)
        terms["distillation_loss"] = share * jnp.sum(sides * weights[..., None])
    if config.centerness_weight:
        assert isinstance(predictions, RatedPredictions)
        target = _centerness(fit, arrays.anchors)
        entropy = sigmoid_cross_entropy(predictions.quality_logits, target) * weighted
        terms["centerness_loss"] = config.centerness_weight * entropy.sum() / count
    return terms, sums


def _fit(model: schema.OneStage, frame: Frame, arrays: _Arrays) -> _Fit:
    """Assigns anchors to boxes, and compares predictions with them."""
    batch, predictions = arrays.batch, arrays.predictions
    coder = build_box_coder(model.box_coder, model.resizer.input_size)
    predicted = coder.decode(predictions.box_encodings, arrays.anchors)
    scores = jax.lax.stop_gradient(jax.nn.sigmoid(predictions.class_logits))
    with jax.named_scope("targets"):
        matches = matches_of_batch(
            batch,
            arrays.anchors,
            Predicted(predicted, scores),
            matcher=model.matcher,
            similarity=model.similarity,
            frame=frame,
        )
    rows = jnp.maximum(matches, 0)
    boxes = jnp.take_along_axis(
        jnp.asarray(batch.boxes, jnp.float32), rows[..., None], axis=1, mode="clip"
    )
    classes = jnp.take_along_axis(jnp.asarray(batch.classes, jnp.int32), rows, axis=1, mode="clip")
    weights = jnp.take_along_axis(
        jnp.asarray(batch.weights, jnp.float32), rows, axis=1, mode="clip"
    )
    # Anchors without a box are compared with themselves, which is finite and has gradients of 0.
    boxes = jnp.where((matches >= 0)[..., None], boxes, jax.lax.stop_gradient(predicted))
    overlaps = jax.lax.stop_gradient(iou(predicted, boxes))
    return _Fit(matches, classes, boxes, weights, predicted, overlaps, scores)


def _alignment(matcher: schema.Matcher, fit: _Fit, rows: int) -> AnchorValues:
    """Returns the targets `alignment`; 0 for other matchers, which do not compare predictions."""
    if not isinstance(matcher, schema.TaskAlignedMatcher):
        return jnp.zeros_like(fit.overlaps)
    assigned = jnp.take_along_axis(fit.scores, fit.classes[..., None], axis=-1, mode="clip")[..., 0]
    target = partial(alignment_targets, boxes=rows, alpha=matcher.alpha, beta=matcher.beta)
    return jax.vmap(target)(fit.matches, assigned, fit.overlaps)


def _box_weights(
    config: schema.QualityLoss, fit: _Fit, anchors: Float32[Array, "A 4"], aligned: AnchorValues
) -> AnchorValues:
    weights: dict[str, Callable[[], Array]] = {
        "one": lambda: jnp.ones_like(fit.overlaps),
        "centerness": lambda: _centerness(fit, anchors),
        "score": lambda: fit.scores.max(axis=-1),
        "alignment": lambda: aligned,
    }
    return weights[config.box_weights]()


def _centerness(fit: _Fit, anchors: Float32[Array, "A 4"]) -> AnchorValues:
    return centerness(fit.boxes, (anchors[:, :2] + anchors[:, 2:]) / 2.0)


def _matches(
    config: schema.QualityLoss, matched: AnchorValues, images: Bool[Array, "B 1"]
) -> Float32[Array, ""]:
    """Returns the number of matched anchors that losses are divided by."""
    counts = matched.sum(axis=1, keepdims=True)
    if config.empty_images_count:
        counts = jnp.maximum(counts, 1.0) * images
    return counts.sum()


def _box_losses(
    config: schema.QualityLoss, frame: Frame, fit: _Fit, weights: AnchorValues
) -> AnchorValues:
    losses: AnchorValues = implementation_of(config.localization)(
        config.localization,
        fit.predicted,
        fit.boxes,
        weights,
        decode=decode_for(config.localization, lambda boxes: boxes, frame.size),
        skip_zeros=False,
    )
    return losses


def _distribution_losses(
    model: schema.OneStage, arrays: _Arrays, fit: _Fit
) -> Float32[Array, "B A 4"]:
    """Returns the distribution focal loss of each edge."""
    coder = build_box_coder(model.box_coder, model.resizer.input_size)
    logits = arrays.predictions.box_encodings
    distances = jax.lax.stop_gradient(coder.encode(fit.boxes, arrays.anchors))
    return distribution_focal_loss(_by_edge(logits), distances)


def _divergences(logits: Float32[Array, "B A S"], taught: Taught) -> Float32[Array, "B A 4"]:
    """Returns the divergence of each edge's distribution from the teacher's."""
    return distillation_loss(
        _by_edge(logits), _by_edge(taught.box_logits), temperature=taught.temperature
    )


def _by_edge(logits: Float32[Array, "B A S"]) -> Float32[Array, "B A 4 K"]:
    return logits.reshape(*logits.shape[:-1], 4, -1)
