"""From ground truth and anchors to the targets of a batch, as the experiment describes it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.geometry import (
    PairFunction,
    ioa,
    iou,
    neg_sq_dist,
    thresholded_iou,
)
from stillbox.boxes.matchers import argmax_match, bipartite_match
from stillbox.boxes.targets import Match, Targets, assign_targets, is_padding
from stillbox.experiment import schema
from stillbox.inputs.batch import Batch
from stillbox.models.coding import build_box_coder


@jax.named_scope("targets")
def batch_targets(batch: Batch, anchors: np.ndarray, model: schema.Model) -> Targets:
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
        match=_match_function(model.matcher),
        encode=build_box_coder(model.box_coder, model.resizer.input_size).encode,
        similarity=_similarity_function(model.similarity),
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


def _match_function(matcher: schema.Matcher) -> Match:
    if isinstance(matcher, schema.BipartiteMatcher):
        return bipartite_match
    return partial(
        argmax_match,
        matched_threshold=matcher.matched_threshold,
        unmatched_threshold=matcher.unmatched_threshold,
        ignore_thresholds=matcher.ignore_thresholds,
        negatives_lower_than_unmatched=matcher.negatives_lower_than_unmatched,
        force_match_for_each_row=matcher.force_match_for_each_row,
    )


def _similarity_function(similarity: schema.Similarity) -> PairFunction:
    if isinstance(similarity, schema.ThresholdedIouSimilarity):
        return partial(thresholded_iou, iou_threshold=similarity.iou_threshold)
    return _SIMILARITIES[type(similarity)]


_SIMILARITIES: dict[type, PairFunction] = {
    schema.IouSimilarity: iou,
    schema.IoaSimilarity: ioa,
    schema.NegSqDistSimilarity: neg_sq_dist,
}
