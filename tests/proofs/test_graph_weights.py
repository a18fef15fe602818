"""Weights of published graphs of TensorFlow.js, against what the executed graphs computed.

The images are resized as TF1 does by default: a pixel of the network input is taken at its index
times the ratio of the sides.
"""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.cli.main import main
from stillbox.experiment.resolve import resolve
from stillbox.models.build import build_detector
from stillbox.models.one_stage.detector import decode_boxes
from stillbox.models.postprocessing import convert_logits
from tests.small import SHARED, needs_shared

pytestmark = [pytest.mark.proof, needs_shared]

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
        share = (places - low).reshape([-1 if own == axis else 1 for own in range(3)])
        first, second = (np.take(pixels, index, axis) for index in (low, high))
        pixels = first + (second - first) * share
    return pixels


@pytest.mark.parametrize(
    ("weights", "recipe", "overrides", "golden", "arrays", "tolerance"),
    [
        (SSDLITE, "ssdlite_mobilenet_v2_coco", [], "tfjs_coco_raw_4imgs", 404, 2e-5),
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
    model = resolve(recipe, overrides).experiment.model
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
        theirs = {name.partition("|")[2]: own for name, own in expected.items() if image in name}
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
