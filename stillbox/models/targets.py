"""Box coders, matchers, similarities and losses by their schema classes, and a batch's targets.

The families in `schema` say how they are called. Targets come from ground truth and anchors;
proposals are the anchors of the second stage.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int32

from stillbox.boxes import coders, losses
from stillbox.boxes.adaptive_matching import atss_match, task_aligned_match
from stillbox.boxes.distributions import mean_distances
from stillbox.boxes.geometry import ioa, iou, neg_sq_dist, thresholded_iou
from stillbox.boxes.matchers import (
    IGNORED,
    Frame,
    Predicted,
    Targets,
    argmax_match,
    assign_targets,
    bipartite_match,
    is_padding,
    similarity_rows,
)
from stillbox.boxes.structures import AnyArray, Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import RegisteredConfig, implementation_of, implements
from stillbox.models.parallel import batch_shard_map

Coding = Callable[[ArrayLike, ArrayLike], Array]


class BoxCodec(NamedTuple):
    """Encodes boxes relative to their anchors, and decodes them."""

    encode: Coding
    """From boxes `[..., 4]` and anchors `[..., 4]` to deltas `[..., code_size]`; to the means
    `[..., 4]` where codes are distributions."""
    decode: Coding
    """From deltas `[..., code_size]` and anchors `[..., 4]` to boxes `[..., 4]`."""


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
def _mean_stddev(config: schema.MeanStddevBoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    return BoxCodec(
        partial(coders.encode_mean_stddev, stddev=config.stddev),
        partial(coders.decode_mean_stddev, stddev=config.stddev),
    )


@implements(schema.SquareBoxCoder)
def _square(config: schema.SquareBoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    scales = config.y_scale, config.x_scale, config.length_scale
    return BoxCodec(
        partial(coders.encode_square, scales=scales), partial(coders.decode_square, scales=scales)
    )


@implements(schema.DistanceBoxCoder)
def _distances(config: schema.DistanceBoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    units = config.units_in_anchor
    return BoxCodec(
        partial(coders.encode_distances, units=units), partial(coders.decode_distances, units=units)
    )


@implements(schema.DistributionBoxCoder)
def _distribution(config: schema.DistributionBoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    units, longest = config.units_in_anchor, config.longest

    def decode(logits: ArrayLike, anchors: ArrayLike) -> Array:
        distances = mean_distances(logits, bins=longest + 1)
        return coders.decode_distances(distances, anchors, units=units)

    return BoxCodec(partial(coders.encode_distances, units=units, longest=longest), decode)


# From here on the fields of a section are the keyword arguments of the function that it selects.
_SELECTED: dict[type[RegisteredConfig], Callable[..., Array]] = {
    schema.ArgmaxMatcher: argmax_match,
    schema.BipartiteMatcher: bipartite_match,
    schema.AtssMatcher: atss_match,
    schema.TaskAlignedMatcher: task_aligned_match,
    schema.IouSimilarity: iou,
    schema.IoaSimilarity: ioa,
    schema.NegSqDistSimilarity: neg_sq_dist,
    schema.ThresholdedIouSimilarity: thresholded_iou,
}
_CLASSIFICATION_LOSSES: dict[type[RegisteredConfig], Callable[..., Array]] = {
    schema.SigmoidLoss: losses.sigmoid_loss,
    schema.SigmoidFocalLoss: losses.sigmoid_focal_loss,
    schema.BootstrappedSigmoidLoss: losses.bootstrapped_sigmoid_loss,
    schema.SoftmaxLoss: losses.softmax_loss,
    schema.SoftmaxAgainstLogitsLoss: losses.softmax_against_logits_loss,
    schema.QualityFocalLoss: losses.quality_focal_loss,
    schema.VarifocalLoss: losses.varifocal_loss,
}
_DELTA_LOSSES: dict[type[RegisteredConfig], Callable[..., Array]] = {
    schema.SmoothL1Loss: losses.smooth_l1_loss,
    schema.L1Loss: losses.l1_loss,
    schema.L2Loss: losses.l2_loss,
}
_BOX_LOSSES: dict[type[RegisteredConfig], Callable[..., Array]] = {
    schema.IouLoss: losses.iou_loss,
    schema.GiouLoss: losses.giou_loss,
    schema.DiouLoss: losses.diou_loss,
    schema.CiouLoss: losses.ciou_loss,
}

Decode = Callable[[Array], Array]
"""From deltas `[B, A, S]` to boxes `[B, A, 4]`."""


def decode_for(
    loss: schema.LocalizationLoss, decode: Decode, input_size: tuple[int, int]
) -> Decode:
    """Returns a function to the boxes that a loss compares.

    Args:
        loss: normalised boxes, or pixels if its `in_pixels` is set.
        decode: returns boxes that are normalised to the network input.
        input_size: height and width of the network input, in pixels.
    """
    if not loss.in_pixels:
        return decode
    return lambda deltas: decode(deltas) * jnp.asarray((*input_size, *input_size), jnp.float32)


def _classification_loss(
    loss: Callable[..., Array], config: schema.ClassificationLoss, *arrays: Array
) -> Array:
    return loss(*arrays, **vars(config))


def _delta_loss(
    loss: Callable[..., Array],
    config: schema.LocalizationLoss,
    *arrays: Array,
    decode: Decode,
    skip_zeros: bool,
) -> Array:
    return loss(*arrays, **vars(config), skip_zeros=skip_zeros)


def _box_loss(
    loss: Callable[..., Array],
    config: schema.LocalizationLoss,
    deltas: Array,
    targets: Array,
    weights: Array,
    *,
    decode: Decode,
    skip_zeros: bool,
) -> Array:
    return loss(decode(deltas), decode(targets), weights)


for _section, _function in _SELECTED.items():
    implements(_section)(lambda config, _function=_function: partial(_function, **vars(config)))
for _section, _function in _CLASSIFICATION_LOSSES.items():
    implements(_section)(partial(_classification_loss, _function))
for _section, _function in _DELTA_LOSSES.items():
    implements(_section)(partial(_delta_loss, _function))
for _section, _function in _BOX_LOSSES.items():
    implements(_section)(partial(_box_loss, _function))


class TargetOptions(TypedDict):
    """Options of `assign_targets` about classes."""

    num_classes: int
    background_class: bool
    encode_background_as_zeros: bool
    negative_class_weight: float


@jax.named_scope("targets")
def targets_of_batch(
    batch: Batch,
    anchors: Float[AnyArray, "A 4"] | Float[AnyArray, "B A 4"],
    *,
    matcher: schema.Matcher,
    similarity: schema.Similarity,
    box_coder: schema.BoxCoder,
    input_size: tuple[int, int],
    level_sizes: tuple[int, ...] = (),
    **options: Unpack[TargetOptions],
) -> Targets:
    """Returns the targets of a batch; padding rows have weights of 0.

    Args:
        batch: B images and their ground truth.
        anchors: those of all images, or of each; normalised to the network input.
        matcher: assigns ground-truth boxes to anchors.
        similarity: what it compares.
        box_coder: of the targets.
        input_size: height and width of the network input, in pixels.
        level_sizes: see `matchers.Frame`.
        options: of `assign_targets`.
    """
    anchors = jnp.asarray(anchors)
    assign: Callable[..., Targets] = partial(
        assign_targets,
        match=implementation_of(matcher)(matcher),
        encode=build_box_coder(box_coder, input_size).encode,
        similarity=implementation_of(similarity)(similarity),
        frame=Frame(input_size, level_sizes),
        **options,
    )
    each = anchors.ndim == 3

    def of_image(
        anchors: Array, boxes: Array, classes: Array, weights: Array, used: Array
    ) -> Targets:
        return assign(anchors, boxes, classes, weights, used_rows=used)

    # As in `matches_of_batch`.
    of_images = batch_shard_map(
        jax.vmap(of_image, (0 if each else None, 0, 0, 0, None)),
        ("batch" if each else "replicated", "batch", "batch", "batch", "replicated"),
        "batch",
    )
    arrays = map(jnp.asarray, (batch.boxes, batch.classes, batch.weights))
    targets: Targets = of_images(anchors, *arrays, used_rows(batch))
    image_weights = jnp.asarray(batch.image_weights)[:, None]
    return targets._replace(
        class_weights=targets.class_weights * image_weights,
        box_weights=targets.box_weights * image_weights,
    )


def used_rows(batch: Batch) -> Int32[Array, ""]:
    """Returns the number of rows of a batch before those that are padding in all images.

    Loops over different numbers of rows for each image would be slower.
    """
    rows = jnp.arange(1, batch.boxes.shape[1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(is_padding(batch.boxes, batch.weights), 0, rows))


def matches_of_batch(
    batch: Batch,
    anchors: Float[AnyArray, "A 4"],
    predicted: Predicted,
    *,
    matcher: schema.Matcher,
    similarity: schema.Similarity,
    frame: Frame,
) -> Int32[Array, "B A"]:
    """Returns the rows of the ground truth that anchors are assigned to, for any matcher.

    Args:
        batch: B images and their ground truth.
        anchors: normalised to the network input.
        predicted: for each image; no gradient flows through it.
        matcher: assigns ground-truth boxes to anchors.
        similarity: what it compares.
        frame: of the anchors.

    Returns:
        The row, or `matchers.BACKGROUND` or `matchers.IGNORED`. Anchors that are assigned to a box
        without weight are ignored.
    """
    match = implementation_of(matcher)(matcher)
    compare = implementation_of(similarity)(similarity)
    anchors = jnp.asarray(anchors, jnp.float32)

    def of_image(
        boxes: Array, classes: Array, weights: Array, predicted: Predicted, used: Array
    ) -> Int32[Array, "A"]:
        rows = similarity_rows(anchors, boxes, weights, compare, frame, used)
        matches: Array = match(rows._replace(classes=classes, predicted=predicted))
        return jnp.where((matches >= 0) & (weights[matches] == 0.0), IGNORED, matches)

    boxes, weights = (jnp.asarray(one, jnp.float32) for one in (batch.boxes, batch.weights))
    classes = jnp.asarray(batch.classes, jnp.int32)
    predicted = jax.lax.stop_gradient(predicted)
    # Candidates are sorted inside a loop, for which XLA would gather all images on all devices.
    of_images = batch_shard_map(
        jax.vmap(of_image, (0, 0, 0, 0, None)),
        ("batch", "batch", "batch", "batch", "replicated"),
        "batch",
    )
    matches: Array = of_images(boxes, classes, weights, predicted, used_rows(batch))
    return matches
