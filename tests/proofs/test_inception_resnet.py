"""Faster R-CNN with Inception ResNet v2 has the variables and computes what the original computed.

`tools/inception_resnet.py` makes the goldens. Raw predictions and scores deviate by up to
2e-5, and boxes by up to 1e-3 pixels, which is rounding in 80 blocks one behind the other.
"""

import json
from functools import cache

import jax
import numpy as np
import pytest

from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.names import object_paths, reference_names
from stillbox.checkpoints.tf1 import write_tf1_checkpoint
from stillbox.cli.overrides import changes_of
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.resolve import resolve_reading
from stillbox.models.build import abstract_detector, build_detector
from stillbox.models.detector import LossInputs
from stillbox.models.two_stage.boxes import detect_boxes_among
from stillbox.models.variables import bind_detector, split_detector
from tests.batches import batch_of
from tools.inception_resnet import BOXES, CHANNEL_STEP, GOLDENS, LABELS, SIDE, images, weight

CASES = ("stride_16", "stride_8", "keras")
LOSSES = {
    "Loss/RPNLoss/localization_loss": "proposal_localization_loss",
    "Loss/RPNLoss/objectness_loss": "objectness_loss",
    "Loss/BoxClassifierLoss/localization_loss": "localization_loss",
    "Loss/BoxClassifierLoss/classification_loss": "classification_loss",
}
THIN = "depth_multiplier=0.05", "min_depth=4"
SIZES = np.full((2, 2), SIDE, np.int32)


@cache
def described(name):
    """The model of a configuration."""
    path = GOLDENS / f"{name}.config"
    return read_pipeline_config(path.read_text(), path.name).experiment.model


def names(name, arrays):
    """The original's names by our path."""
    find = object_paths if name == "keras" else reference_names
    return find(described(name), arrays)


@cache
def golden(name):
    with np.load(GOLDENS / f"{name}.npz") as arrays:
        return dict(arrays)


@cache
def weighted(name):
    """Graph, parameters and statistics."""
    built = build_detector(described(name))
    definition, params, stats = split_detector(built)
    arrays = params | stats
    own_names = names(name, arrays)
    drawn = {
        path: jax.numpy.asarray(weight(own_names[path], array.shape))
        for path, array in arrays.items()
    }
    return definition, {path: drawn[path] for path in params}, {path: drawn[path] for path in stats}


@pytest.mark.parametrize("name", CASES)
def test_every_variable_has_the_name_and_shape_of_the_original(name):
    _, params, stats = abstract_detector(described(name), "float32")
    arrays = {**params, **stats}
    ours = {
        original_name: list(arrays[path].shape)
        for path, original_name in names(name, arrays).items()
    }
    assert ours == dict(json.loads((GOLDENS / f"{name}.json").read_text()))


# Of the variables in slim's `inception_resnet_v2_2016_08_30.ckpt`.
SLIM = {
    "InceptionResnetV2/Conv2d_1a_3x3/weights": [3, 3, 3, 32],
    "InceptionResnetV2/Mixed_5b/Branch_3/Conv2d_0b_1x1/BatchNorm/beta": [64],
    "InceptionResnetV2/Repeat/block35_10/Branch_2/Conv2d_0b_3x3/weights": [3, 3, 32, 48],
    "InceptionResnetV2/Repeat_1/block17_20/Branch_1/Conv2d_0b_1x7/weights": [1, 7, 128, 160],
    "InceptionResnetV2/Mixed_7a/Branch_2/Conv2d_1a_3x3/weights": [3, 3, 288, 320],
    "InceptionResnetV2/Repeat_2/block8_9/Branch_1/Conv2d_0c_3x1/weights": [3, 1, 224, 256],
    "InceptionResnetV2/Block8/Conv2d_1x1/biases": [2080],
    "InceptionResnetV2/Conv2d_7b_1x1/BatchNorm/moving_variance": [1536],
}


@pytest.mark.parametrize("name", ("stride_16", "stride_8"))
def test_a_classifier_of_slim_has_the_same_network_under_one_scope(name):
    """`restore_from_classification_checkpoint_fn` of the original's extractor."""
    _, params, stats = abstract_detector(described(name), "float32")
    arrays = {**params, **stats}
    first, second = "FirstStageFeatureExtractor/", "SecondStageFeatureExtractor/"
    expected = {
        path: original_name.replace(
            f"{second}InceptionResnetV2/Repeat/", "InceptionResnetV2/Repeat_2/"
        )
        .removeprefix(first)
        .removeprefix(second)
        for path, original_name in names(name, arrays).items()
        if original_name.startswith((first, second))
    }
    names_read = reference_names(described(name), arrays, scope="classification")
    assert names_read == expected
    shapes = {original_name: list(arrays[path].shape) for path, original_name in names_read.items()}
    assert shapes.items() >= SLIM.items()


def test_a_checkpoint_of_slim_fills_the_network(tmp_path):
    path = GOLDENS / "stride_16.config"
    thin = [f"model.{part}.{size}" for part in ("backbone", "boxes.head") for size in THIN]
    reading = read_pipeline_config(path.read_text(), path.name)
    experiment = resolve_reading(reading, path.name, changes_of(thin)).experiment
    _, params, stats = abstract_detector(experiment.model, "float32")
    arrays = {**params, **stats}
    rng = np.random.default_rng(0)
    names_of_network = reference_names(experiment.model, arrays, scope="classification")
    content = {
        name: rng.random(arrays[path].shape, np.float32) for path, name in names_of_network.items()
    }
    for scope in ("Logits/Logits", "AuxLogits/Logits"):
        content[f"InceptionResnetV2/{scope}/weights"] = np.zeros((4, 1001), np.float32)
    content["global_step"] = np.asarray(0, np.int64)
    write_tf1_checkpoint(tmp_path / "inception_resnet_v2_2016_08_30.ckpt", content)
    options = ImportOptions(scope="classification")
    _, arrays_read = read_weights(
        arrays, experiment.model, tmp_path / "inception_resnet_v2_2016_08_30.ckpt", options
    )
    assert arrays_read.keys() == names_of_network.keys()
    for place, name in names_of_network.items():
        np.testing.assert_array_equal(arrays_read[place], content[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_both_stages_predict_the_same(name):
    definition, params, stats = weighted(name)
    expected = golden(name)
    proposals = expected["proposal_boxes"]

    @jax.jit
    def run(params, stats, pixels, boxes):
        built = bind_detector(definition, params, stats)
        maps = built.features(pixels, SIZES, train=False)
        first = built.predict_proposals(maps, SIZES, train=False)
        anchors = built.frame_anchors(SIZES, clip=True)
        chosen = built.choose_proposals(first, anchors, SIZES)
        return maps[0], first, chosen, built.predict_boxes(maps, boxes, SIZES, train=False)

    features, first, chosen, second = jax.device_get(run(params, stats, images(), proposals))
    np.testing.assert_allclose(features[..., ::CHANNEL_STEP], expected["features"], atol=2e-5)
    assert np.abs(expected["features"]).max() > 1
    for ours, theirs in (
        (first.box_encodings, "rpn_box_encodings"),
        (first.class_logits, "rpn_objectness_predictions_with_background"),
    ):
        np.testing.assert_allclose(ours, expected[theirs], atol=2e-5)
    assert chosen.count.tolist() == expected["num_proposals"].tolist()
    np.testing.assert_allclose(chosen.boxes, proposals, atol=1e-3)
    codes, logits = (x.reshape(-1, *x.shape[2:]) for x in second)
    np.testing.assert_allclose(codes, expected["refined_box_encodings"], atol=2e-5)
    np.testing.assert_allclose(
        logits, expected["class_predictions_with_background"].reshape(logits.shape), atol=2e-5
    )
    kept = chosen._replace(boxes=proposals)
    detections, _ = detect_boxes_among(second, kept, SIZES, described(name))
    np.testing.assert_array_equal(detections.count, expected["num_detections"])
    np.testing.assert_array_equal(detections.classes, expected["detection_classes"])
    np.testing.assert_allclose(detections.scores, expected["detection_scores"], atol=2e-5)
    np.testing.assert_allclose(detections.boxes, expected["detection_boxes"], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_losses_are_the_same(name):
    """The first generation has frozen batch norm here, the second trains it."""
    definition, params, stats = weighted(name)
    expected = golden(name)
    batch = batch_of(images(), BOXES, np.ones(BOXES.shape[:2], np.float32), LABELS)

    @jax.jit
    def run(params, stats, batch):
        built = bind_detector(definition, params, stats)
        return built.loss(LossInputs(batch, key=jax.random.key(0))).terms

    losses = run(params, stats, batch)
    for theirs, ours in LOSSES.items():
        np.testing.assert_allclose(losses[ours], expected[theirs], rtol=1e-4, err_msg=ours)
