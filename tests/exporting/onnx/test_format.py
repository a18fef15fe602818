"""ONNX artefacts: both runtimes, every input and both signatures."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest

import stillbox
from stillbox.errors import UserError
from stillbox.experiment.overrides import apply_overrides
from stillbox.exporting.export import export_model
from stillbox.exporting.formats import find_loader
from stillbox.exporting.onnx.format import FILE, RAW_FILE
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.extras import install_command
from stillbox.inputs.resize import resize_image
from tests.exporting.onnx.runtimes import RUNTIMES, loaded
from tests.exporting.test_stablehlo import OUTPUTS
from tests.small import EVERY_DETECTION

onnx = pytest.importorskip("onnx")


def load(folder, manifest, runtime):
    return find_loader("onnx", runtime)(folder, manifest)


def exported(model, images, folder, **settings):
    return export_model(model, folder, ExportSettings(format="onnx", **settings), images)


@pytest.fixture(scope="module")
def distinct(model):
    """The model with other kernels: its scores lie apart, which fixes the order of detections."""
    rng = np.random.default_rng(0)
    params = {
        path: rng.normal(0, 1.5 / np.sqrt(np.prod(array.shape[:3])), array.shape).astype("f")
        if path.endswith("kernel")
        else array
        for path, array in model.params.items()
    }
    return dataclasses.replace(model, params=params)


@pytest.fixture(scope="module")
def free(model, images, tmp_path_factory):
    """An artefact of the Object Detection API's signature that takes images of any size."""
    return exported(model, images, tmp_path_factory.mktemp("export") / "free", batch_size=0)


def expected(model, settings, images):
    """What the program itself returns for images `[B, h, w, 3]` of one size."""
    program = ExportProgram(model, settings)
    resized, sizes = zip(
        *(resize_image(image, program.description.resizer) for image in images), strict=True
    )
    original = np.tile(np.array(images.shape[1:3], np.int32), (len(images), 1))
    outputs = jax.jit(program.outputs)(
        program.weights, np.stack(resized), np.array(sizes, np.int32), original
    )
    return {name: np.asarray(array) for name, array in outputs.items()}


def assert_same(got, wanted):
    assert sorted(got) == sorted(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype, name
        # Boxes in pixels have larger numbers than scores.
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_artefact_equals_its_checkpoint(free, checkpoint, images, blank, runtime):
    assert free.verification.detections > 10
    assert free.verification.max_box_difference < 1e-3
    assert free.verification.max_score_difference < 1e-5
    predictor = stillbox.load(free.folder, runtime=runtime)
    for image in (*images, blank):
        got, wanted = (
            predictor.predict(image, **EVERY_DETECTION),
            checkpoint.predict(image, **EVERY_DETECTION),
        )
        np.testing.assert_allclose(got.scores, wanted.scores, atol=1e-5)
        assert len(got) > 10 or image is blank


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_outputs_of_the_object_detection_api(distinct, images, tmp_path, runtime):
    result = exported(distinct, images, tmp_path / "out", batch_size=0)
    run = load(result.folder, result.manifest, runtime)
    for batch in (np.stack([images[0], images[0][::-1], images[0][:, ::-1]]), images[1][None]):
        got = run(batch)
        assert list(got) == OUTPUTS["detection_api"]
        assert_same(got, expected(distinct, result.manifest.settings, batch))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_outputs_of_the_tpu_page(distinct, images, tmp_path, runtime):
    settings = {"signature": "tpu", "batch_size": 0, "image_size": images[0].shape[:2]}
    result = exported(distinct, images[:1], tmp_path / "out", **settings)
    pair = np.stack([images[0], images[0][::-1]])
    got = load(result.folder, result.manifest, runtime)(pair)
    assert list(got) == OUTPUTS["tpu"]
    assert_same(got, expected(distinct, result.manifest.settings, pair))


@pytest.mark.parametrize(
    "settings",
    [
        {"input_type": "float_image_tensor", "signature": "tpu", "normalized_coordinates": True},
        {"input_type": "raw_image_tensor", "batch_size": 2, "max_detections": 7},
        {"signature": "tpu", "float_count": True, "float_classes": True, "image_info": False},
    ],
)
def test_other_inputs_equal_the_checkpoint(model, images, tmp_path, settings):
    result = exported(model, images, tmp_path / "out", **settings)
    assert result.verification.detections > 10
    found = stillbox.load(result.folder, runtime="openvino").predict(images[0], **EVERY_DETECTION)
    assert len(found) == settings.get("max_detections", len(found)) > 5


def test_nothing_above_the_threshold_gives_zeros(model, images, tmp_path):
    overrides = ["model.postprocessing.nms.score_threshold=0.99"]
    experiment = apply_overrides(model.experiment, overrides, {})
    strict = dataclasses.replace(model, experiment=experiment)
    result = exported(strict, images, tmp_path / "out")
    for runtime in RUNTIMES:
        outputs = load(result.folder, result.manifest, runtime)(images[0][None])
        assert outputs["num_detections"] == 0
        assert not outputs["detection_boxes"].any() and not outputs["detection_scores"].any()
        np.testing.assert_array_equal(outputs["detection_classes"], 1)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_raw_file_ends_before_suppression(free, model, images, runtime):
    graph = onnx.load(free.folder / RAW_FILE)
    assert not {"If", "Loop", "NonMaxSuppression"} & {node.op_type for node in graph.graph.node}
    program = ExportProgram(model, free.manifest.settings)
    pixels = np.stack([resize_image(images[0], program.description.resizer)[0]] * 2)
    sizes = np.tile(np.int32(program.input_size), (2, 1))
    _, (boxes, scores) = jax.jit(program.detect)(program.weights, pixels, sizes)
    wanted = boxes, scores[..., program.description.background_class :]
    for got, array in zip(loaded(graph, runtime)({"pixels": pixels}), wanted, strict=True):
        np.testing.assert_allclose(got, array, atol=1e-5)


def test_the_manifest_lists_the_requirements(free):
    manifest = free.manifest
    assert manifest.files.keys() >= {FILE, RAW_FILE}
    assert manifest.needs["onnxruntime"].startswith(">=")
    assert manifest.written_with["onnx"] == onnx.__version__
    model = onnx.load(free.folder / FILE)
    wanted = f"opset {model.opset_import[0].version}, IR version {model.ir_version}"
    assert manifest.needs["onnx"] == wanted


def test_openvino_is_loaded_without_its_telemetry(free):
    load(free.folder, free.manifest, "openvino")
    assert "openvino_telemetry" not in sys.modules


def test_signals_are_handled_after_two_models_were_dropped_by_openvino(free):
    pytest.importorskip("openvino")
    code = """
import signal, sys
from pathlib import Path
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.onnx.runtimes import load_openvino

folder = Path(sys.argv[1])
for _ in range(2):
    run = load_openvino(folder, Manifest.read(folder))
del run
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
signal.raise_signal(signal.SIGTERM)
"""
    command = [sys.executable, "-c", code, str(free.folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "handled\n"), ended.stderr


@pytest.mark.parametrize("absent", ["onnxruntime", "openvino"])
def test_an_absent_runtime_is_named(free, monkeypatch, absent):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(UserError, match=f"{absent} is not installed") as caught:
        load(free.folder, free.manifest, absent)
    extra = {"onnxruntime": "onnx"}.get(absent, absent)
    assert caught.value.fix == install_command(extra)


def test_an_absent_writer_is_named(model, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match="onnx is not installed"):
        exported(model, images, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_unreadable_file_is_named(free, tmp_path, runtime):
    (tmp_path / FILE).write_bytes(b"nothing")
    with pytest.raises(UserError, match="refuses the model") as caught:
        load(tmp_path, free.manifest, runtime)
    assert ">=" in caught.value.fix


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_input_that_does_not_fit_is_refused(free, runtime):
    run = load(free.folder, free.manifest, runtime)
    with pytest.raises(UserError, match=r"does not take uint8 \[1, 8, 8, 4\]"):
        run(np.zeros((1, 8, 8, 4), np.uint8))


def test_another_runtime_is_refused(free):
    with pytest.raises(UserError, match="jax does not run onnx"):
        load(free.folder, free.manifest, "jax")
