"""The targets of a batch, from ground truth and anchors, and what losses share.

Proposals are the anchors of the second stage. The families in `schema` say how box coders,
matchers, similarities and losses are called.
"""

from collections.abc import Callable
from functools import partial
from typing import TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32, Int32

from stillbox.boxes.coders import BoxCodec
from stillbox.boxes.matchers import (
    IGNORED,
    Frame,
    Predicted,
    Targets,
    assign_targets,
    is_padding,
    similarity_rows,
)
from stillbox.boxes.sampling import mine_hard_examples
from stillbox.boxes.structures import AnyArray, Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.parallel import batch_shard_map


def build_box_coder(config: schema.BoxCoder, input_size: tuple[int, int]) -> BoxCodec:
    """Returns the coder of a configuration.

    Args:
        config: the coder.
        input_size: height and width of the network input, in pixels. Boxes are normalised to it,
            and some coders need the size of a pixel.
    """
    coder: BoxCodec = implementation_of(config)(config, input_size)
    return coder


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


def mask_of_hard_examples(
    stage: schema.Loss | schema.RoIHead,
    classification: Float32[Array, "B A"],
    localization: Float32[Array, "B A"],
    boxes: Float32[Array, "B A 4"],
    matches: Int32[Array, "B A"],
) -> Float32[Array, "B A"]:
    """Returns 1 for the anchors that count and 0 for the others; the stage has a miner.

    Args:
        stage: has the miner and the weights of both losses.
        classification: losses of the classes, not weighted by the stage.
        localization: losses of the boxes, likewise.
        boxes: decoded.
        matches: see `Targets.matches`.
    """
    miner = stage.hard_example_miner
    assert miner is not None
    return mine_hard_examples(
        localization,
        classification,
        boxes,
        matches,
        classification_weight=stage.classification_weight,
        localization_weight=stage.localization_weight,
        num_hard_examples=miner.num_hard_examples,
        iou_threshold=miner.iou_threshold,
        loss_type=miner.loss_type,
        max_negatives_per_positive=miner.max_negatives_per_positive,
        min_negatives_per_image=miner.min_negatives_per_image,
    )


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
        anchors: of all images, or of each; normalised to the network input.
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

    boxes, weights = (jnp.asarray(array, jnp.float32) for array in (batch.boxes, batch.weights))
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
