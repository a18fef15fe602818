"""What targets and losses take beside what goes in and comes out; the compiler says it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.models.anchors import build_anchors
from stillbox.models.one_stage.loss import detection_loss
from stillbox.models.one_stage.targets import batch_targets
from stillbox.models.predictions import Predictions

IMAGES, BOXES, SLOTS = 4, 60, 31
MODEL = schema.OneStage(
    num_classes=SLOTS - 1,
    anchors=schema.MultiscaleAnchors(min_level=3, max_level=3, scales_per_octave=3),
    matcher=schema.ArgmaxMatcher(force_match_for_each_row=True),
    loss=schema.Loss(
        classification=schema.SigmoidFocalLoss(alpha=0.25), encode_background_as_zeros=True
    ),
)
# 16 x 16 locations with nine anchors each.
ANCHORS = build_anchors(MODEL.anchors, ((16, 16),), (128, 128))
FLOAT = 4


def batch():
    return Batch(
        images=np.zeros((IMAGES, 1, 1, 3), np.float32),
        boxes=np.zeros((IMAGES, BOXES, 4), np.float32),
        classes=np.zeros((IMAGES, BOXES), np.int32),
        weights=np.zeros((IMAGES, BOXES), np.float32),
        true_sizes=np.full((IMAGES, 2), 128, np.int32),
        records=np.zeros(IMAGES, np.int32),
        image_weights=np.ones(IMAGES, np.float32),
    )


def temporary_bytes(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    "similarity", [schema.IouSimilarity(), schema.IoaSimilarity(), schema.NegSqDistSimilarity()]
)
def test_targets_hold_no_matrix_of_boxes_and_anchors(similarity):
    model = replace(MODEL, similarity=similarity)
    size = temporary_bytes(lambda one: batch_targets(one, ANCHORS, model), batch())
    # The matrix would have 60 numbers for each anchor; a few for the best so far are enough.
    assert size < IMAGES * len(ANCHORS) * BOXES * FLOAT / 4


def test_the_focal_loss_keeps_nothing_as_large_as_the_logits_for_its_gradient():
    predictions = Predictions(
        jnp.zeros((IMAGES, len(ANCHORS), 4)), jnp.zeros((IMAGES, len(ANCHORS), SLOTS))
    )

    def loss(predictions, one):
        parts = detection_loss(predictions, one, ANCHORS, MODEL)
        return parts.classification + parts.localization

    size = temporary_bytes(jax.value_and_grad(loss), predictions, batch())
    assert size < IMAGES * len(ANCHORS) * SLOTS * FLOAT
