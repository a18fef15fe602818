"""Targets of a batch from ground truth and anchors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.batch import Batch
from stillbox.boxes.targets import Targets, assign_targets, is_padding
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import matchers  # noqa: F401 - registers them
from stillbox.models.box_coders import build_box_coder


@jax.named_scope("targets")
def batch_targets(batch: Batch, anchors: np.ndarray, model: schema.OneStage) -> Targets:
    """Returns the targets of a batch for anchors `[A, 4]`; padding rows have weights of 0."""
    assign = partial(
        assign_targets,
        jnp.asarray(anchors),
        num_classes=model.num_classes,
        background_class=model.background_class,
        encode_background_as_zeros=model.loss.encode_background_as_zeros,
        negative_class_weight=model.loss.negative_class_weight,
        match=implementation_of(model.matcher)(model.matcher),
        encode=build_box_coder(model.box_coder, model.resizer.input_size).encode,
        similarity=implementation_of(model.similarity)(model.similarity),
    )
    # One number for all images: loops of different lengths would be slower.
    rows = jnp.arange(1, batch.boxes.shape[1] + 1, dtype=jnp.int32)
    used = jnp.max(jnp.where(is_padding(batch.boxes, batch.weights), 0, rows))
    assign = partial(assign, used_rows=used)
    targets = jax.vmap(assign)(batch.boxes, batch.classes, batch.weights)
    image_weights = jnp.asarray(batch.image_weights)[:, None]
    return targets._replace(
        class_weights=targets.class_weights * image_weights,
        box_weights=targets.box_weights * image_weights,
    )
