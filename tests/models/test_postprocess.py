"""Scores from logits, boxes from encodings, the true image inside the padded one.

A description of a box coder becomes functions with its values in them.
"""

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.detector import Predictions
from stillbox.models.one_stage.detector import class_scores, postprocess
from stillbox.models.postprocessing import convert_logits, suppress
from stillbox.models.targets import build_box_coder
from tests.helpers import at_once

_LOGITS = np.log([[[1.0, 2.0, 5.0]]]).astype(np.float32)


def _model(
    converter="sigmoid", background=True, scale=1.0, nms=None, clip=None, calibration=None, **fields
):
    return schema.OneStage(
        num_classes=2 if background else 3,
        background_class=background,
        postprocessing=schema.Postprocessing(
            score_converter=converter,
            logit_scale=scale,
            box_encodings_clip=clip,
            calibration=calibration,
            nms=schema.Nms(score_threshold=0.5, max_total=3, **(nms or {})),
        ),
        **fields,
    )


def _scores(model, logits=_LOGITS):
    return at_once(lambda x: class_scores(convert_logits(x, model.postprocessing), model), logits)


def _found(model, anchors, size, logits, encodings=None):
    """The detections of one image; the encodings are zeros where none are given."""
    zeros = np.zeros((1, len(anchors), 4), np.float32)
    given = zeros if encodings is None else np.float32([encodings])
    predictions = Predictions(given, np.float32([logits]))

    def run(predictions, sizes):
        return postprocess(predictions, anchors, sizes, model)

    return at_once(run, predictions, np.int32([size]))


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
    scores = _scores(_model(converter, background, scale))
    np.testing.assert_allclose(scores[0, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("calibration", "expected"),
    [
        # Slots 0, 1, 2 of sigmoid scores 1/2, 2/3, 5/6; slot 0 goes afterwards.
        (schema.CurveCalibration(scores=(0.5, 1.0), calibrated=(0.0, 0.5)), [1 / 6, 1 / 3]),
        (
            schema.ClassCurveCalibration(
                curves=(
                    schema.ClassCurve(slot=2, scores=(0.0, 1.0), calibrated=(0.0, 0.5)),
                    schema.ClassCurve(slot=0, scores=(0.5,), calibrated=(1.0,)),
                )
            ),
            [2 / 3, 5 / 12],
        ),
        # 1 / (1 + e^(-3 s + 2)): e^0 and e^-.5.
        (schema.SigmoidCalibration(a=-3.0, b=2.0), [1 / 2, 0.622459]),
        (
            schema.ClassSigmoidCalibration(sigmoids=(schema.ClassSigmoid(slot=1, a=-3.0, b=2.0),)),
            [1 / 2, 5 / 6],
        ),
        (schema.TemperatureCalibration(scaler=2.0), [1 / 3, 5 / 12]),
    ],
)
def test_scores_are_calibrated_by_class_slot(calibration, expected):
    scores = _scores(_model(calibration=calibration))
    np.testing.assert_allclose(scores[0, 0], expected, rtol=1e-5)


def test_boxes_are_decoded_clipped_to_the_true_image_and_relative_to_it():
    resizer = schema.KeepAspectRatioResizer(min_dimension=100, max_dimension=200)
    model = _model(resizer=resizer)
    # True image: 100 of 200 rows, all columns. The box [.25, .25, .75, .75] of the canvas is
    # clipped to [.25, .25, .5, .75], of the image [.5, .25, 1, .75].
    anchors = np.array([[0.25, 0.25, 0.75, 0.75], [0.6, 0.0, 0.9, 0.5]], np.float32)
    logits = [[0.0, 3.0, -9.0], [0.0, 2.0, -9.0]]
    detections = _found(model, anchors, (100, 200), logits)
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
    encodings = [[1.0, -1.0, np.log(2.0), 0.0]]
    detections = _found(model, anchors, (300, 300), [[0.0, 3.0, -9.0]], encodings)
    np.testing.assert_allclose(detections.boxes[0, 0], [0.4, 0.35, 0.8, 0.55], atol=1e-6)


def test_encodings_are_clipped_before_they_are_decoded():
    model = _model(clip=schema.BoxEncodingsClip(min=-1.0, max=0.5))
    # Of shifts 5 and -5 over 10 remain .05 and -.1 of the side .2.
    anchors, encodings = np.float32([[0.4, 0.4, 0.6, 0.6]]), [[5.0, -5.0, 0.0, 0.0]]
    detections = _found(model, anchors, (300, 300), [[0.0, 3.0, -9.0]], encodings)
    np.testing.assert_allclose(detections.boxes[0, 0], [0.41, 0.38, 0.61, 0.58], atol=1e-6)


# On a canvas of 200, with the image in the first 100 rows: a box that lies half in the padding, one
# that overlaps it by .375 / .5 = .75, and one in the padding alone.
_CANVAS = schema.KeepAspectRatioResizer(min_dimension=100, max_dimension=200)
_ANCHORS = np.array([[0.25, 0, 0.75, 1], [0.375, 0, 0.75, 1], [0.625, 0, 1, 1]], np.float32)


@pytest.mark.parametrize(
    ("nms", "boxes", "classes"),
    [
        ({}, [[0.5, 0, 1, 1]], [0]),
        ({"change_coordinate_frame": False}, [[0.25, 0, 0.5, 1]], [0]),
        # In the padded frame nothing is cut off, and nothing is dropped.
        (
            {"change_coordinate_frame": False, "combined": True},
            [[0.25, 0, 0.75, 1], [0.625, 0, 1, 1]],
            [0, 1],
        ),
        ({"iou_threshold": 0.75}, [[0.5, 0, 1, 1], [0.75, 0, 1, 1]], [0, 0]),
        ({"iou_threshold": 0.75, "drop_at_threshold": True}, [[0.5, 0, 1, 1]], [0]),
        # A pixel is .01 of the image's height and .005 of its width.
        ({"clip_margin": 1.0}, [[0.5, 0, 0.99, 0.995]], [0]),
        # Still relative to the image, twice as high as the input; overlaps as before.
        ({"clip_to": "input"}, [[0.5, 0, 1.5, 1], [1.25, 0, 2, 1]], [0, 1]),
        (
            {"clip_to": "input", "clip_margin": 50.0},
            [[0.5, 0, 1.5, 0.75], [1.25, 0, 1.5, 0.75]],
            [0, 1],
        ),
        # Clipped, the two share .125 of .25: what overlapped by .75 does so by .5.
        (
            {"clip_first": True, "iou_threshold": 0.6},
            [[0.5, 0, 1, 1], [0.75, 0, 1, 1]],
            [0, 0],
        ),
        # The second score fades to .9526 * exp(-.5625 / .8) = .472, to .9526 * exp(-.5625) = .543.
        ({"soft_sigma": 0.4}, [[0.5, 0, 1, 1]], [0]),
        ({"soft_sigma": 0.5}, [[0.5, 0, 1, 1], [0.75, 0, 1, 1]], [0, 0]),
        ({"class_agnostic": True}, [[0.5, 0, 1, 1]], [0]),
    ],
)
def test_every_variant_keeps_to_the_true_image(nms, boxes, classes):
    logits = [[0.0, 4.0, -9.0], [0.0, 3.0, -9.0], [0.0, -9.0, 2.0]]
    model = _model(resizer=_CANVAS, nms=nms)
    normalised = _found(model, _ANCHORS, (100, 200), logits)
    scores, settings = _scores(model, np.float32([logits])), model.postprocessing.nms

    def run(pixels, scores, sizes):
        return suppress(pixels, scores, sizes, settings, (200, 200), in_pixels=True)

    in_pixels = at_once(run, 200 * _ANCHORS[None], scores, np.int32([[100, 200]]))
    for detections in (normalised, in_pixels):
        assert detections.count.tolist() == [len(boxes)]
        np.testing.assert_allclose(detections.boxes[0, : len(boxes)], boxes, atol=1e-6)
        assert detections.classes[0, : len(boxes)].tolist() == classes


def test_class_agnostic_nms_keeps_one_class_of_a_box():
    for agnostic, classes in ((False, [1, 0]), (True, [1])):
        model = _model(nms={"class_agnostic": agnostic})
        detections = _found(model, _ANCHORS[:1], (300, 300), [[0.0, 2.0, 3.0]])
        assert detections.classes[0, : int(detections.count[0])].tolist() == classes


# Centres .5 and .4, sizes .2 x .2 and .4 x .4: shifts .1 / .4 = .25, ln(.2 / .4) = -.693147.
BOX, ANCHOR = np.float32([[0.4, 0.4, 0.6, 0.6], [0.2, 0.2, 0.6, 0.6]])
HALVED = -0.693147


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (
            schema.FasterRcnnBoxCoder(y_scale=2.0, x_scale=3.0, height_scale=4.0, width_scale=5.0),
            [0.5, 0.75, 4 * HALVED, 5 * HALVED],
        ),
        (
            schema.SquareBoxCoder(y_scale=2.0, x_scale=3.0, length_scale=4.0),
            [0.5, 0.75, 4 * HALVED],
        ),
        (schema.MeanStddevBoxCoder(stddev=0.1), [2, 2, 0, 0]),
    ],
)
def test_a_coder_encodes_with_its_values_and_decodes_back(config, code):
    coder = build_box_coder(config, (40, 80))
    codes = coder.encode(BOX, ANCHOR)
    assert codes.shape == (config.code_size,)
    np.testing.assert_allclose(codes, code, atol=1e-5)
    np.testing.assert_allclose(coder.decode(codes, ANCHOR), BOX, atol=1e-6)
