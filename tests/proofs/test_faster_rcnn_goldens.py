"""Faster R-CNN computes what the original computed, layer by layer.

Tolerances: features, logits and codes 5e-4 (values up to 8), with batch statistics 5e-3; losses
1e-3 of their value, with batch statistics 5e-3; boxes of proposals and detections 1e-3 of the
image. The second stage is given the original's own proposals: scores lie so close that another
order of summation exchanges some.
"""

from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np
import pytest

from stillbox.checkpoints.names import reference_names
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.schema import FixedShapeResizer
from stillbox.models.build import build_detector
from stillbox.models.paths import variables_of
from stillbox.models.two_stage.boxes import box_loss, detect_boxes_among, sample_proposals
from stillbox.models.two_stage.proposals import proposal_loss
from stillbox.models.variables import bind_detector, split_detector
from tests import faster_rcnn as golden
from tests.small import needs_shared

# Networks of full size on images of full size: several minutes.
pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

TF1 = ("faster_rcnn_resnet50_coco", "faster_rcnn_inception_v2_coco", "faster_rcnn_resnet101_coco")
# The second generation evaluates with the static forms, which this configuration asks for.
MODES = [(golden.KERAS, "eval_loop"), *((name, "eval") for name in TF1)]
TRAINED = (
    [
        (name, mode)
        for name, mode in (tuple(key.split("/")) for key in golden.forward())
        if mode.startswith("train")
    ]
    if golden.GOLDENS.is_dir()
    else []
)


@cache
def as_read(name):
    text = (golden.GOLDENS / "configs" / f"{name}.config").read_text()
    return read_pipeline_config(text, name).experiment.model


@cache
def model(name):
    described = as_read(name)
    if name == golden.KERAS:
        return described
    # The images of the goldens fill the input.
    resizer = FixedShapeResizer(height=600, width=800)
    return replace(described, resizer=resizer, mask_padding=False)


@cache
def detector(name):
    built = build_detector(model(name))
    held = variables_of(built)
    if name == golden.KERAS:
        names = {path: golden.keras_name(path) for path in held}
    else:
        names = reference_names(model(name), held)
    golden.load_weights(built, names)
    return built


@cache
def evaluated(name):
    """Feature maps and raw predictions of the first stage, not in training."""
    built, batch = detector(name), golden.batch(name)

    @jax.jit
    def run(images, sizes):
        maps = built.features(images, sizes, train=False)
        return maps, built.predict_proposals(maps, sizes, train=False)

    return run(batch.images, batch.true_sizes)


@pytest.mark.parametrize("name, mode", MODES)
def test_the_first_stage_predicts_the_same(name, mode):
    expected = golden.forward()[f"{name}/{mode}"]
    maps, predictions = evaluated(name)
    golden.check_statistics(maps[0], expected["rpn_features_to_crop"][0], 5e-4)
    golden.check_statistics(predictions.box_encodings, expected["rpn_box_encodings"], 5e-4)
    golden.check_statistics(predictions.class_logits, expected["rpn_objectness"], 5e-4)


@pytest.mark.parametrize("name, mode", MODES)
def test_proposals_are_the_same(name, mode):
    expected = golden.forward()[f"{name}/{mode}"]["first_stage_nms"]
    built, batch = detector(name), golden.batch(name)
    _, predictions = evaluated(name)
    anchors = built.frame_anchors(batch.true_sizes, clip=True)
    proposals = built.choose_proposals(predictions, anchors, batch.true_sizes)
    # Of the 300 picks some lie in the padding, where all scores are equal but for rounding.
    slack = 3 if name == golden.KERAS else 0
    np.testing.assert_allclose(proposals.count, expected["num"], atol=slack)
    scores, boxes = np.asarray(proposals.scores), np.asarray(proposals.boxes)
    np.testing.assert_allclose(scores[:, :20], expected["scores_first20"], atol=1e-5)
    for image in range(2):
        # Boxes of nearly equal scores may change places.
        distances = np.abs(boxes[image] - np.asarray(expected["boxes_first20"][image])[:, None])
        assert distances.max(axis=2).min(axis=1).max() < 0.1
    stored = golden.stored_proposals(name, mode)
    for image in range(2):
        count = expected["num"][image]
        distances = np.abs(boxes[image] - stored.boxes[image, :count, None])
        close = distances.max(axis=2).min(axis=1) < 0.1
        assert close.mean() > 0.98


@pytest.mark.parametrize("name, mode", MODES)
def test_the_second_stage_detects_the_same(name, mode):
    expected = golden.forward()[f"{name}/{mode}"]
    built, batch = detector(name), golden.batch(name)
    maps, _ = evaluated(name)
    proposals = golden.stored_proposals(name, mode)
    run = jax.jit(partial(built.predict_boxes, train=False))
    predictions = run(maps, proposals.boxes, batch.true_sizes)
    codes, logits = (np.asarray(x) for x in predictions)
    flat = codes.reshape(-1, *codes.shape[2:])
    golden.check_statistics(flat, expected["refined_box_encodings"], 5e-4)
    classes = expected["class_predictions_with_background"]
    golden.check_statistics(logits.reshape(-1, logits.shape[-1]), classes, 5e-4)
    detections, _ = detect_boxes_among(predictions, proposals, batch.true_sizes, model(name))
    expected = expected["detections"]
    assert detections.count.tolist() == expected["num"]
    np.testing.assert_allclose(detections.scores[:, :20], expected["scores20"], atol=1e-4)
    np.testing.assert_allclose(detections.scores.sum(1), expected["score_sum"], rtol=1e-3)
    for image in range(2):
        rows = np.c_[np.asarray(detections.boxes[image]), np.asarray(detections.classes[image])]
        for box, class_ in zip(
            expected["boxes20"][image], expected["classes20"][image], strict=True
        ):
            nearest = np.abs(rows - np.asarray([*box, class_])).max(axis=1).min()
            assert nearest < 1e-3


@pytest.mark.parametrize("name, mode", TRAINED)
def test_losses_are_the_same(name, mode):
    expected = golden.forward()[f"{name}/{mode}"]
    described, parts = model(name), split_detector(detector(name))
    batch = golden.batch(name, expected.get("groundtruth"))
    proposals = golden.stored_proposals(name, mode)
    # The shuffle of the goldens is the identity: the original's static form then draws the last
    # anchors of each kind, the dynamic one the first.
    last = name == golden.KERAS

    @jax.jit
    def run(batch, proposals):
        built, sizes = bind_detector(*parts), batch.true_sizes
        pixels = np.tile(np.float32(built.image_shape), 2)
        batch = batch._replace(boxes=batch.boxes * pixels)
        maps = built.features(batch.images, sizes, train=True)
        predictions = built.predict_proposals(maps, sizes, train=True)
        anchors = built.frame_anchors(sizes, clip=described.proposals.clip_anchors)
        numbers = np.arange(anchors.usable.shape[1], dtype=np.float32)
        priorities = np.tile(numbers if last else -numbers, (2, 1))
        first = proposal_loss(predictions, batch, anchors, priorities, described.proposals)
        sample = sample_proposals(proposals, batch, np.zeros((2, 64), np.float32), described)
        boxes = built.predict_boxes(maps, sample.boxes, sizes, train=True)
        return first, box_loss(boxes, sample, batch, described)

    first, second = jax.device_get(run(batch, proposals))
    losses_by_name = {
        "Loss/RPNLoss/localization_loss": first.localization,
        "Loss/RPNLoss/objectness_loss": first.classification,
        "Loss/BoxClassifierLoss/localization_loss": second.localization,
        "Loss/BoxClassifierLoss/classification_loss": second.classification,
    }
    assert first.positives == sum(expected["rpn_sampling"]["num_sampled_positive"])
    assert second.positives == sum(expected["stage2_targets"]["num_positive"])
    rtol = 5e-3 if name == golden.KERAS else 1e-3
    for key, value in expected["losses"].items():
        np.testing.assert_allclose(losses_by_name[key], value, rtol=rtol, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", TF1[:2])
def test_padding_changes_no_number(name):
    """600x800 pixels on the canvas of the configuration, 1024x1024, which is masked."""
    expected = golden.forward()[f"{name}/eval"]
    described, batch = as_read(name), golden.batch(name)
    assert described.mask_padding and described.resizer.input_size == (1024, 1024)
    built = build_detector(described)
    golden.load_weights(built, reference_names(described, variables_of(built)))
    rng = np.random.default_rng(0)
    canvas = rng.uniform(0, 255, (2, 1024, 1024, 3)).astype(np.float32)
    canvas[:, :600, :800] = batch.images

    @jax.jit
    def run(images, sizes, proposals):
        maps = built.features(images, sizes, train=False)
        predictions = built.predict_proposals(maps, sizes, train=False)
        anchors = built.frame_anchors(sizes, clip=True)
        chosen = built.choose_proposals(predictions, anchors, sizes)
        boxes = built.predict_boxes(maps, proposals.boxes, sizes, train=False)
        return maps[0], chosen, boxes, detect_boxes_among(boxes, proposals, sizes, described)[0]

    proposals = golden.stored_proposals(name, "eval")
    features, chosen, boxes, detections = run(canvas, batch.true_sizes, proposals)
    golden.check_statistics(features[:, :38, :50], expected["rpn_features_to_crop"][0], 1e-4)
    assert chosen.count.tolist() == expected["first_stage_nms"]["num"]
    np.testing.assert_allclose(
        chosen.scores[:, :20], expected["first_stage_nms"]["scores_first20"], atol=1e-4
    )
    codes, logits = (np.asarray(x).reshape(-1, *x.shape[2:]) for x in boxes)
    golden.check_statistics(codes, expected["refined_box_encodings"], 1e-4)
    golden.check_statistics(logits, expected["class_predictions_with_background"], 1e-4)
    scores = expected["detections"]["scores20"]
    np.testing.assert_allclose(detections.scores[:, :20], scores, atol=1e-4)
