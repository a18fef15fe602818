"""Real weights, through our importer and our detector, against what TensorFlow computed."""

import jax
import numpy as np
import pytest

from stillbox.checkpoints.importer import import_weights
from stillbox.checkpoints.names import reference_names
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.experiment import schema
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from tests.shared import SHARED, needs_shared

pytestmark = [pytest.mark.proof, needs_shared]

WEIGHTS = SHARED / "weights"


def _model(multiplier):
    conv = schema.ConvHyperparams(
        activation="relu6", batch_norm=schema.BatchNorm(scale=True, epsilon=1e-3)
    )
    return schema.OneStage(
        num_classes=90,
        backbone=schema.MobileNetV1(depth_multiplier=multiplier, conv=conv),
        neck=schema.SsdLayers(depth_multiplier=multiplier, conv=conv),
        anchors=schema.SsdAnchors(aspect_ratios=(1.0, 2.0, 0.5, 3.0, 1 / 3)),
    )


@pytest.fixture(scope="module")
def detector():
    """The COCO detector; the fixture proves that all of its weights are there."""
    detector = build_detector(_model(0.75))
    path = WEIGHTS / "ssd_mobilenet_v1_0.75_coco_folded.npz"
    report = import_weights(
        detector, _model(0.75), path, scope="detection", load_heads=True, min_loaded=1.0
    )
    assert len(report.loaded) == 199
    assert not report.skipped
    return detector


def test_raw_outputs_for_four_images_are_those_of_tensorflow(detector):
    with np.load(WEIGHTS / "golden_float_raw_4imgs.npz") as golden:
        photos = sorted({name.split("|")[0] for name in golden.files if ".jpg|" in name})
        images = np.stack([golden[f"{photo}|input"] for photo in photos]).astype(np.float32)
        boxes = np.stack([golden[f"{photo}|box_encodings"] for photo in photos])
        logits = np.stack([golden[f"{photo}|class_logits"] for photo in photos])
    assert len(photos) == 4
    predictions = jax.jit(lambda images: detector(images, train=False))(images)
    # Reached: 3.2e-5 on encodings up to 15, 1.1e-5 on logits up to 9.7.
    np.testing.assert_allclose(predictions.box_encodings, boxes, rtol=0, atol=1e-4)
    np.testing.assert_allclose(predictions.class_logits, logits, rtol=0, atol=1e-4)


def test_anchors_are_those_of_tensorflow(detector):
    with np.load(WEIGHTS / "golden_float_raw_4imgs.npz") as golden:
        centres_and_sizes = golden["anchors_yxhw"]
    low, high = detector.anchors[:, :2], detector.anchors[:, 2:]
    ours = np.concatenate([(low + high) / 2, high - low], axis=1)
    np.testing.assert_allclose(ours, centres_and_sizes, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["bnstat", "folded"])
def test_imagenet_weights_fill_the_whole_backbone(kind):
    detector = build_detector(_model(1.0))
    path = WEIGHTS / f"mobilenet_v1_1.0_imagenet_{kind}.npz"
    report = import_weights(
        detector, _model(1.0), path, scope="classification", load_heads=False, min_loaded=1.0
    )
    assert len(report.loaded) == 135
    assert set(report.skipped.values()) == {"classifier's logits"}
    kernel = np.asarray(detector.backbone.conv_13_pointwise.kernel[...])
    with np.load(path) as arrays:
        assert np.array_equal(kernel, arrays["MobilenetV1|Conv2d_13_pointwise|weights"])


def test_a_real_detection_checkpoint_is_covered_name_by_name():
    """The index of the published SSD MobileNet v1: names and shapes, against our own detector."""
    prefix = WEIGHTS / "tf1_checkpoints" / "names" / "ssd_mobilenet_v1_coco"
    theirs = {name: entry.shape for name, entry in Tf1Checkpoint(prefix).entries.items()}
    del theirs["global_step"]
    _, params, stats = split_detector(build_detector(_model(1.0)))
    arrays = params | stats
    names = reference_names(_model(1.0), arrays)
    assert {name: arrays[path].shape for path, name in names.items()} == theirs
