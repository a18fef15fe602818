"""Scores from logits, boxes from encodings, the true image inside the padded one."""

import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.postprocess import class_scores, postprocess
from stillbox.models.predictions import Predictions

_LOGITS = np.log([[[1.0, 2.0, 5.0]]]).astype(np.float32)


def _model(converter="sigmoid", background=True, scale=1.0, **fields):
    return schema.Model(
        num_classes=2 if background else 3,
        background_class=background,
        postprocessing=schema.Postprocessing(
            score_converter=converter,
            logit_scale=scale,
            nms=schema.Nms(score_threshold=0.5, max_total=3),
        ),
        **fields,
    )


@pytest.mark.parametrize(
    ("converter", "background", "scale", "expected"),
    [
        ("sigmoid", True, 1.0, [2 / 3, 5 / 6]),  # e^x / (1 + e^x)
        ("sigmoid", False, 1.0, [1 / 2, 2 / 3, 5 / 6]),
        ("softmax", True, 1.0, [2 / 8, 5 / 8]),  # the background counts, then goes
        ("softmax", False, 1.0, [1 / 8, 2 / 8, 5 / 8]),
        ("softmax", True, 0.5, [4 / 30, 25 / 30]),  # halved scale squares the odds
        ("identity", True, 1.0, [np.log(2), np.log(5)]),
    ],
)
def test_scores_from_logits(converter, background, scale, expected):
    scores = class_scores(jnp.asarray(_LOGITS), _model(converter, background, scale))
    np.testing.assert_allclose(scores[0, 0], expected, rtol=1e-6)


def test_boxes_are_decoded_clipped_to_the_true_image_and_relative_to_it():
    resizer = schema.KeepAspectRatioResizer(min_dimension=100, max_dimension=200)
    model = _model(resizer=resizer)
    # True image: 100 of 200 rows, all columns. The box [.25, .25, .75, .75] of the canvas is
    # clipped to [.25, .25, .5, .75], of the image [.5, .25, 1, .75].
    anchors = np.array([[0.25, 0.25, 0.75, 0.75], [0.6, 0.0, 0.9, 0.5]], np.float32)
    logits = jnp.array([[[0.0, 3.0, -9.0], [0.0, 2.0, -9.0]]])
    detections = postprocess(
        Predictions(jnp.zeros((1, 2, 4)), logits), anchors, jnp.array([[100, 200]]), model
    )
    # The second box lies in the padding alone and is gone.
    assert detections.count.tolist() == [1]
    np.testing.assert_allclose(detections.boxes[0, 0], [0.5, 0.25, 1, 0.75], atol=1e-6)
    assert detections.classes[0, 0] == 0
    np.testing.assert_allclose(detections.scores[0, 0], 1 / (1 + np.exp(-3)), rtol=1e-6)


def test_the_coders_scales_divide_the_encodings():
    coder = schema.FasterRcnnBoxCoder(y_scale=2.0, x_scale=4.0, height_scale=1.0, width_scale=1.0)
    model = _model(box_coder=coder)
    anchors = np.array([[0.4, 0.4, 0.6, 0.6]], np.float32)
    # The centre moves by 1 / 2 and -1 / 4 of the side .2; the height doubles.
    encodings = jnp.array([[[1.0, -1.0, np.log(2.0), 0.0]]])
    detections = postprocess(
        Predictions(encodings, jnp.array([[[0.0, 3.0, -9.0]]])),
        anchors,
        jnp.array([[300, 300]]),
        model,
    )
    np.testing.assert_allclose(detections.boxes[0, 0], [0.4, 0.35, 0.8, 0.55], atol=1e-6)
