"""From ground truth and anchors to the targets of a batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.batch import Batch
from stillbox.boxes.targets import Targets, assign_targets, is_padding
from stillbox.experiment import schema
from stillbox.models.box_coders import build_box_coder
from stillbox.models.matchers import build_matcher, build_similarity


@jax.named_scope("targets")
def batch_targets(batch: Batch, anchors: np.ndarray, model: schema.OneStage) -> Targets:
    """Returns the targets of a batch; rows that only fill it up weigh nothing.

    Args:
        batch: ground truth of B images.
        anchors: `[A, 4]`, normalised to the network input.
        model: the detector's description.
    """
    assign = partial(
        assign_targets,
        jnp.asarray(anchors),
        num_classes=model.num_classes,
        background_class=model.background_class,
        encode_background_as_zeros=model.loss.encode_background_as_zeros,
        negative_class_weight=model.loss.negative_class_weight,
        match=build_matcher(model.matcher),
        encode=build_box_coder(model.box_coder, model.resizer.input_size).encode,
        similarity=build_similarity(model.similarity),
    )
    # The same number for all images: a loop of another length for each would be slower.
    rows = jnp.arange(1, batch.boxes.shape[1] + 1, dtype=jnp.int32)
    used = jnp.max(jnp.where(is_padding(batch.boxes, batch.weights), 0, rows))
    assign = partial(assign, used_rows=used)
    targets = jax.vmap(assign)(batch.boxes, batch.classes, batch.weights)
    counted = jnp.asarray(batch.image_weights)[:, None]
    return targets._replace(
        class_weights=targets.class_weights * counted, box_weights=targets.box_weights * counted
    )
