"""NanoDet-g: its graph of TensorFlow.js, read and executed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.pretrained import find_weights
from stillbox.cli.main import main
from stillbox.experiment.resolve import resolve
from stillbox.models.build import build_detector
from tests.proofs.tfjs_graph import Graph
from tests.small import SHARED, needs_shared

NAME = "nanodet_g_416_coco"
# Tests have a cache of their own.
WEIGHTS = find_weights(NAME)
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(WEIGHTS is None, reason=f"the weights {NAME} are not here"),
]


def test_raw_outputs_are_those_of_the_executed_graph():
    model = resolve("nanodet_g_416").experiment.model
    detector = build_detector(model)
    report = import_weights(detector, model, WEIGHTS, ImportOptions())
    assert (len(report.loaded), report.missing, report.mismatched) == (167, {}, ())
    image = np.random.default_rng(0).uniform(0, 255, (1, 416, 416, 3)).astype(np.float32)
    ours = detector(jnp.asarray(image), train=False)

    # As NanoDet's demo: blue, green, red, each with its mean and deviation.
    mean, std = np.float32([103.53, 116.28, 123.675]), np.float32([57.375, 57.12, 58.395])
    pixels = ((image[..., ::-1] - mean) / std).transpose(0, 3, 1, 2)
    names = ["Identity", *(f"Identity_{number}" for number in range(1, 6))]
    outputs = jax.jit(lambda pixels: Graph(WEIGHTS).run(pixels, *names))(pixels)
    scores, edges = (np.concatenate(part, axis=1) for part in (outputs[:3], outputs[3:]))
    np.testing.assert_allclose(jax.nn.sigmoid(ours.class_logits), scores, atol=1e-5)
    # Left, top, right, bottom.
    edges = edges.reshape(1, -1, 4, 11)[:, :, [1, 0, 3, 2]].reshape(1, -1, 44)
    np.testing.assert_allclose(ours.box_encodings, edges, atol=1e-4)


@needs_shared
def test_ap_is_that_of_the_executed_graph(tmp_path):
    data = SHARED / "data/tiny_coco"
    converted = ["data", "convert", "coco", "--output", str(tmp_path), "--name", "val"]
    annotations = data / "annotations/instances_val2017.json"
    converted += ["--annotations", str(annotations), "--images", str(data / "val2017")]
    assert main(converted) == 0
    fields = {"paths": tmp_path / "val.record-*", "label_map": tmp_path / "label_map.pbtxt"}
    words = [f"--set=data.evaluation.{field}={path}" for field, path in fields.items()]
    output = tmp_path / "evaluation"
    command = ["evaluate", "nanodet_g_416", "--weights", str(WEIGHTS), "--output", str(output)]
    assert main([*command, *words]) == 0
    summary = json.loads((output / "metrics.json").read_text())["summary"]
    # The graph with OpenCV's resizing and suppression at an IoU of .6: .3076, .4514, .3393.
    for name, score in {"AP": 0.308, "AP50": 0.451, "AP75": 0.339}.items():
        assert abs(summary[name] - score) <= 0.003


def test_towers_and_filters_of_boxes_are_those_for_other_classes_too():
    model = resolve("nanodet_g_416", {"model.num_classes": 3}).experiment.model
    report = import_weights(build_detector(model), model, WEIGHTS, ImportOptions(min_loaded=0.5))
    assert report.missing == {}
    filters = {mismatch.path.split(".")[2] for mismatch in report.mismatched}
    assert (len(report.loaded), filters) == (161, {"class_"})
