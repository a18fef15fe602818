"""Targets of a batch from ground truth and anchors; proposals are anchors of the second stage."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from stillbox.boxes.matchers import Targets, assign_targets, is_padding
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import matchers  # noqa: F401 - registers them
from stillbox.models.box_coders import build_box_coder

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
