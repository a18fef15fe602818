"""Box coders, matchers, similarities and losses by their schema classes, and a batch's targets.

The families in `schema` say how they are called. Targets come from ground truth and anchors;
proposals are the anchors of the second stage.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes import coders, losses
from stillbox.boxes.geometry import PairFunction, ioa, iou, neg_sq_dist, thresholded_iou
from stillbox.boxes.matchers import (
    Match,
    Targets,
    argmax_match,
    assign_targets,
    bipartite_match,
    is_padding,
)
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements

Coding = Callable[[ArrayLike, ArrayLike], Array]


class BoxCodec(NamedTuple):
    """Encodes boxes relative to their anchors, and decodes them."""

    encode: Coding
    """From boxes `[..., 4]` and anchors `[..., 4]` to codes `[..., code_size]`."""
    decode: Coding
    """From codes `[..., code_size]` and anchors `[..., 4]` to boxes `[..., 4]`."""


def build_box_coder(config: schema.BoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    """Returns the coder of a configuration.

    Args:
        config: the coder.
        input_size: height and width of the network input, in pixels. Boxes are normalised to it,
            and some coders need the size of a pixel.
    """
    coder: BoxCodec = implementation_of(config)(config, input_size)
    return coder


@implements(schema.FasterRcnnBoxCoder)
def _faster_rcnn(config: schema.FasterRcnnBoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    scales = config.y_scale, config.x_scale, config.height_scale, config.width_scale
    pixel = 1 / input_size[0], 1 / input_size[1]
    return BoxCodec(
        encode=partial(
            coders.encode_faster_rcnn,
            scales=scales,
            pixel=pixel if config.inclusive_edges == "both" else None,
        ),
        decode=partial(
            coders.decode_faster_rcnn,
            scales=scales,
            pixel=None if config.inclusive_edges == "none" else pixel,
            max_log_ratio=config.max_log_ratio,
        ),
    )


@implements(schema.MeanStddevBoxCoder)
def _mean_stddev(config: schema.MeanStddevBoxCoder, input_size: Any) -> BoxCodec:  # noqa: ANN401
    return BoxCodec(
        partial(coders.encode_mean_stddev, stddev=config.stddev),
        partial(coders.decode_mean_stddev, stddev=config.stddev),
    )


@implements(schema.SquareBoxCoder)
def _square(config: schema.SquareBoxCoder, input_size: Any) -> BoxCodec:  # noqa: ANN401
    scales = config.y_scale, config.x_scale, config.length_scale
    return BoxCodec(
        partial(coders.encode_square, scales=scales), partial(coders.decode_square, scales=scales)
    )


@implements(schema.ArgmaxMatcher)
def _argmax(config: schema.ArgmaxMatcher) -> Match:
    return partial(argmax_match, **vars(config))


@implements(schema.BipartiteMatcher)
def _bipartite(config: schema.BipartiteMatcher) -> Match:
    return bipartite_match


@implements(schema.IouSimilarity)
def _iou(config: schema.IouSimilarity) -> PairFunction:
    return iou


@implements(schema.IoaSimilarity)
def _ioa(config: schema.IoaSimilarity) -> PairFunction:
    return ioa


@implements(schema.NegSqDistSimilarity)
def _neg_sq_dist(config: schema.NegSqDistSimilarity) -> PairFunction:
    return neg_sq_dist


@implements(schema.ThresholdedIouSimilarity)
def _thresholded_iou(config: schema.ThresholdedIouSimilarity) -> PairFunction:
    return partial(thresholded_iou, iou_threshold=config.iou_threshold)


Decode = Callable[[jax.Array], jax.Array]
"""From codes `[B, A, S]` to boxes `[B, A, 4]`."""


@implements(schema.SigmoidLoss)
def _sigmoid(config: schema.SigmoidLoss, *arrays: jax.Array) -> jax.Array:
    return losses.sigmoid_loss(*arrays)


@implements(schema.SigmoidFocalLoss)
def _focal(config: schema.SigmoidFocalLoss, *arrays: jax.Array) -> jax.Array:
    return losses.sigmoid_focal_loss(*arrays, gamma=config.gamma, alpha=config.alpha)


@implements(schema.BootstrappedSigmoidLoss)
def _bootstrapped(config: schema.BootstrappedSigmoidLoss, *arrays: jax.Array) -> jax.Array:
    return losses.bootstrapped_sigmoid_loss(*arrays, alpha=config.alpha, hard=config.hard)


@implements(schema.SoftmaxLoss)
def _softmax(config: schema.SoftmaxLoss, *arrays: jax.Array) -> jax.Array:
    return losses.softmax_loss(*arrays, logit_scale=config.logit_scale)


@implements(schema.SoftmaxAgainstLogitsLoss)
def _against_logits(config: schema.SoftmaxAgainstLogitsLoss, *arrays: jax.Array) -> jax.Array:
    return losses.softmax_against_logits_loss(*arrays, logit_scale=config.logit_scale)


@implements(schema.SmoothL1Loss)
def _smooth_l1(
    config: schema.SmoothL1Loss, *arrays: jax.Array, decode: Decode, skip_zeros: bool
) -> jax.Array:
    return losses.smooth_l1_loss(*arrays, delta=config.delta, skip_zeros=skip_zeros)


@implements(schema.L1Loss)
def _l1(config: schema.L1Loss, *arrays: jax.Array, decode: Decode, skip_zeros: bool) -> jax.Array:
    return losses.l1_loss(*arrays, skip_zeros=skip_zeros)


@implements(schema.L2Loss)
def _l2(config: schema.L2Loss, *arrays: jax.Array, decode: Decode, skip_zeros: bool) -> jax.Array:
    return losses.l2_loss(*arrays, skip_zeros=skip_zeros)


@implements(schema.IouLoss)
def _iou_loss(
    config: schema.IouLoss, *arrays: jax.Array, decode: Decode, skip_zeros: bool
) -> jax.Array:
    codes, targets, weights = arrays
    return losses.iou_loss(decode(codes), decode(targets), weights)


@implements(schema.GiouLoss)
def _giou(
    config: schema.GiouLoss, *arrays: jax.Array, decode: Decode, skip_zeros: bool
) -> jax.Array:
    codes, targets, weights = arrays
    return losses.giou_loss(decode(codes), decode(targets), weights)


Shape = tuple[int, int]


@jax.named_scope("targets")
def targets_of_batch(
    batch: Batch,
    anchors: ArrayLike,
    *,
    matcher: schema.Matcher,
    similarity: schema.Similarity,
    box_coder: schema.BoxCoder,
    input_size: Shape,
    **options: Any,  # noqa: ANN401
) -> Targets:
    """Returns the targets of a batch; padding rows have weights of 0.

    Args:
        batch: B images and their ground truth.
        anchors: `[A, 4]`, or `[B, A, 4]` where images have their own; normalised to the network
            input.
        matcher: assigns ground-truth boxes to anchors.
        similarity: what it compares.
        box_coder: of the targets.
        input_size: height and width of the network input, in pixels.
        options: of `assign_targets`.
    """
    anchors = jnp.asarray(anchors)
    # One number for all images: loops of different lengths would be slower.
    rows = jnp.arange(1, batch.boxes.shape[1] + 1, dtype=jnp.int32)
    used = jnp.max(jnp.where(is_padding(batch.boxes, batch.weights), 0, rows))
    assign: Callable[..., Targets] = partial(
        assign_targets,
        match=implementation_of(matcher)(matcher),
        encode=build_box_coder(box_coder, input_size).encode,
        similarity=implementation_of(similarity)(similarity),
        used_rows=used,
        **options,
    )
    own = 0 if anchors.ndim == 3 else None
    targets = jax.vmap(assign, (own, 0, 0, 0))(anchors, batch.boxes, batch.classes, batch.weights)
    image_weights = jnp.asarray(batch.image_weights)[:, None]
    return targets._replace(
        class_weights=targets.class_weights * image_weights,
        box_weights=targets.box_weights * image_weights,
    )
