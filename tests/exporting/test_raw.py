"""What `raw` adds for compilers of chips: network, numbers, numpy code and images."""

import argparse
import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from stillbox.cli.export import add_export
from stillbox.experiment import schema
from stillbox.exporting.export import export_model
from stillbox.exporting.onnx import raw
from stillbox.exporting.onnx.decode import decode
from stillbox.exporting.settings import ExportSettings
from stillbox.models.targets import build_box_coder
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from stillbox.references import Parameter
from tests.helpers import refused
from tests.small import EVERY_DETECTION

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def exported(distinct, images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "out"
    return export_model(distinct, folder, ExportSettings(format="onnx", raw=True), images)


def run(file, pixels):
    return onnxruntime.InferenceSession(file).run(None, {"pixels": pixels[None]})


def test_the_numpy_code_decodes_what_the_checkpoint_detects(exported, distinct):
    folder, (height, width) = exported.folder, exported.manifest.input_size
    spec = importlib.util.spec_from_file_location("decode", folder / "decode.py")
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    constants = dict(np.load(folder / "decoding.npz"))
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    encodings, logits = run(folder / "network.onnx", pixels.astype(np.float32))
    boxes, scores = code.decode(encodings[0], logits[0], constants)
    wanted = run(folder / "model_raw.onnx", pixels.astype(np.float32))
    np.testing.assert_allclose(boxes, wanted[0][0], atol=1e-5)
    np.testing.assert_allclose(scores, wanted[1][0], atol=1e-6)
    kept = list(code.detections(boxes, scores, constants))
    seen = Predictor(CheckpointBackend(distinct)).predict(pixels, **EVERY_DETECTION)
    np.testing.assert_allclose([score for _, score, _ in kept], seen.scores, atol=1e-5)
    assert [class_id for *_, class_id in kept] == seen.class_ids.tolist()
    side = np.array([height, width] * 2)
    np.testing.assert_allclose([box * side for box, *_ in kept], seen.boxes, atol=1e-2)


def test_images_to_calibrate_on_have_the_size_of_the_network(exported, images):
    files = sorted((exported.folder / "calibration").iterdir())
    assert len(files) == len(images)
    for file in files:
        assert cv2.imread(str(file)).shape == (*exported.manifest.input_size, 3)


def test_distributions_are_decoded_too():
    rng = np.random.default_rng(1)
    coder = schema.DistributionBoxCoder(longest=4)
    low = rng.random((6, 2), np.float32) / 2
    anchors = np.concatenate([low, low + 0.25], axis=1)
    encodings = rng.normal(size=(6, 20)).astype(np.float32)
    constants = {
        "anchors": anchors,
        "coder": np.array("distribution"),
        "units": np.float32(coder.units_in_anchor),
        "logit_scale": np.float32(2),
        "converter": np.array("softmax"),
        "background": np.array(1),
    }
    logits = rng.normal(size=(6, 3)).astype(np.float32)
    boxes, scores = decode(encodings, logits, constants)
    wanted = build_box_coder(coder, (64, 64)).decode(encodings, anchors)
    np.testing.assert_allclose(boxes, wanted, atol=1e-5)
    powers = np.exp(logits / 2)
    np.testing.assert_allclose(scores, (powers / powers.sum(1, keepdims=True))[:, 1:], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"box_coder": schema.SquareBoxCoder()}, "model.box_coder"),
        ({"box_coder": schema.FasterRcnnBoxCoder(max_log_ratio=4.0)}, "model.box_coder"),
    ],
)
def test_what_the_numpy_code_cannot_decode_is_refused(model, change, place):
    with refused(place):
        raw.check_raw(replace(model.experiment.model, **change))


def test_other_formats_have_no_raw_network():
    with refused(Parameter("raw")):
        ExportSettings(raw=True).checked()


def test_the_commands_and_the_arrays_of_the_page(exported):
    page = (Path(__file__).parents[2] / "docs" / "chips.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_export(parser)
    for command in re.findall(r"^stillbox export (.*)$", page, re.MULTILINE):
        assert parser.parse_args(command.split()).raw
    named = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    assert named == {*np.load(exported.folder / "decoding.npz"), "units"}
