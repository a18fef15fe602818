"""ONNX: the networks of all architectures, and artefacts in both runtimes."""

import dataclasses
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import stillbox
from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.updating import apply_changes
from stillbox.exporting.backend import find_loader
from stillbox.exporting.export import export_model
from stillbox.exporting.onnx import format as onnx_format
from stillbox.exporting.onnx.format import FILE, RAW_FILE, openvino_core, raw_model
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.extras import install_command
from stillbox.inputs.resize import resize_image
from stillbox.lowering import lowering
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from tests.exporting.programs import OUTPUTS, RUNTIMES, assert_verified, expected, loaded
from tests.helpers import refused
from tests.small import EVERY_DETECTION

onnx = pytest.importorskip("onnx")

SIDE = 128
SIZE = [f"model.resizer.{side}={SIDE}" for side in ("height", "width")]
MODELS = {
    "ssd_mobilenet_v1_300x300": [
        "model.backbone={kind: mobilenet_v3_small, depth_multiplier: 0.25}",
        "model.neck={taps: [block_8_expand, conv_1], extra_depths: []}",
        "model.anchors.num_layers=2",
        *SIZE,
    ],
    "retinanet_nasfpn": [
        "model.backbone.depth=10",
        "model.neck.depth=32",
        "model.head.depth=32",
        *SIZE,
    ],
    "spinenet-mbconv49_retinanet": ["model.head.depth=32", *SIZE],
    "ssd_mobilenet_v1_ppn_300x300": [
        "model.backbone={kind: inception_v2, depth_multiplier: 0.25}",
        "model.neck.tap=mixed_4c",
    ],
    "ssd_resnet34": ["model.backbone.depth=10", "model.backbone.space_to_depth_stem=true"],
}


def random_model(recipe, overrides):
    """A detector with random weights and statistics, none of which is neutral."""
    experiment = resolve(recipe, changes_of(overrides)).experiment
    _, params, stats = split_detector(build_detector(experiment.model))
    rng = np.random.default_rng(0)

    def drawn(array, low, high):
        return np.asarray(array) + rng.uniform(low, high, array.shape).astype(np.float32)

    params = {
        path: drawn(array, -0.2, 0.2) if array.ndim == 1 else array
        for path, array in params.items()
    }
    stats = {path: drawn(array, -0.1, 0.3) for path, array in stats.items()}
    return TrainedModel(experiment, None, params, stats, "drawn")


def network_graph(model):
    return ExportProgram(model, ExportSettings(format="onnx", batch_size=0))


def wanted(program, images):
    sizes = np.tile(np.int32(program.input_size), (len(images), 1))

    def function(weights, images):
        _, candidates = program.detect(weights, images, sizes)
        return candidates.boxes, candidates.scores[..., -program.description.num_classes :]

    # XLA's optimisations take half of the time, which a few images do not save.
    options = {"xla_backend_optimization_level": 0}
    with lowering(portable=True):
        return jax.jit(function, compiler_options=options)(program.weights, images)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=[pytest.mark.slow] if "mbconv" in name else []) for name in MODELS],
)
def test_equals_the_network(recipe):
    program = network_graph(random_model(recipe, MODELS[recipe]))
    images = np.random.default_rng(1).uniform(0, 255, (2, *program.input_size, 3))
    images = images.astype(np.float32)
    model, expected = raw_model(program), wanted(program, images)
    for runtime in RUNTIMES:
        boxes, scores = loaded(model, runtime)({"pixels": images})
        np.testing.assert_allclose(boxes, expected[0], atol=1e-4)
        np.testing.assert_allclose(scores, expected[1], atol=1e-4)
    # The file contains all weights once, also those that layers share.
    weights = sum(array.nbytes for arrays in program.weights.values() for array in arrays.values())
    anchors = expected[0][0].nbytes
    assert model.ByteSize() < 1.05 * weights + anchors + 100_000


def test_batch_norms_are_part_of_their_convolutions(model):
    nodes = raw_model(network_graph(model)).graph.node
    kinds = Counter(node.op_type for node in nodes)
    depthwise = [
        attribute.i
        for node in nodes
        for attribute in node.attribute
        if node.op_type == "Conv" and attribute.name == "group" and attribute.i > 1
    ]
    assert depthwise == [8, 8]
    assert kinds["Conv"] == 9
    # The normalisation of pixels, and the decoding of boxes.
    assert (kinds["Sub"], kinds["Div"]) == (2, 4)
    assert (kinds["Mul"], kinds["Add"]) == (2, 2)
    # At the input, and before each of the four predictions.
    assert kinds["Transpose"] == 5
    assert not any("Random" in kind for kind in kinds)


def test_a_calibration_curve_is_refused(model):
    curve = schema.CurveCalibration(scores=(0.0, 1.0), calibrated=(0.0, 0.5))
    description = model.experiment.model
    processing = dataclasses.replace(description.postprocessing, calibration=curve)
    description = dataclasses.replace(description, postprocessing=processing)
    experiment = dataclasses.replace(model.experiment, model=description)
    curved = dataclasses.replace(model, experiment=experiment)
    with refused(None, "ONNX"):
        raw_model(network_graph(curved))


def load(folder, manifest, runtime):
    return find_loader("onnx", runtime)(folder, manifest)


def exported(model, images, folder, **settings):
    return export_model(model, folder, ExportSettings(format="onnx", **settings), images)


@pytest.fixture(scope="module")
def free(model, images, tmp_path_factory):
    """An artefact of the Object Detection API's signature that takes images of any size."""
    return exported(model, images, tmp_path_factory.mktemp("export") / "free", batch_size=0)


def assert_same(got, wanted):
    assert sorted(got) == sorted(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype, name
        # Boxes in pixels have larger numbers than scores.
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_artefact_equals_its_checkpoint(free, checkpoint, images, blank, runtime):
    assert_verified(free, images)
    predictor = stillbox.load(free.folder, runtime=runtime)
    # OpenVINO has another order of equal scores.
    for image in (*images, blank):
        got, wanted = (
            runner.predict(image, **EVERY_DETECTION) for runner in (predictor, checkpoint)
        )
        np.testing.assert_allclose(got.scores, wanted.scores, atol=1e-5)
        assert len(got) > 10 or image is blank


@pytest.fixture(scope="module", params=OUTPUTS)
def signed(request, distinct, images, tmp_path_factory):
    """An artefact of each signature, and the outputs of its program for some batches."""
    pair = np.stack([images[0], images[0][::-1]])
    if request.param == "tpu":
        settings = {"signature": "tpu", "image_size": images[0].shape[:2]}
        shown, batches = images[:1], [pair]
    else:
        settings = {}
        shown, batches = images, [np.stack([*pair, images[0][:, ::-1]]), images[1][None]]
    folder = tmp_path_factory.mktemp("export") / request.param
    result = exported(distinct, shown, folder, batch_size=0, **settings)
    stated = result.manifest.settings
    return result, [(batch, expected(distinct, stated, batch)) for batch in batches]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_outputs_of_a_signature(signed, runtime):
    result, cases = signed
    run = load(result.folder, result.manifest, runtime)
    for batch, wanted in cases:
        got = run(batch)
        assert list(got) == OUTPUTS[result.manifest.settings.signature]
        assert_same(got, wanted)


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
    detections = stillbox.load(result.folder, runtime="openvino").predict(
        images[0], **EVERY_DETECTION
    )
    assert len(detections) == settings.get("max_detections", len(detections)) > 5


def test_nothing_above_the_threshold_gives_zeros(model, images, tmp_path):
    overrides = ["model.postprocessing.nms.score_threshold=0.99"]
    experiment = apply_changes(model.experiment, changes_of(overrides), {})
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


@pytest.mark.parametrize(("slow", "fast"), [RUNTIMES, RUNTIMES[::-1]])
def test_the_fastest_runtime_is_measured(free, images, monkeypatch, slow, fast):
    name = f"load_{slow}"
    original = getattr(onnx_format, name)

    def load_slowly(folder, manifest):
        run = original(folder, manifest)
        return lambda batch: time.sleep(0.2) or run(batch)

    monkeypatch.setattr(onnx_format, name, load_slowly)
    said = []
    predictor = stillbox.load(free.folder, runtime="fastest", say=said.append)
    assert predictor.backend.runtime == fast and len(predictor.predict(images[0], min_score=0)) > 0
    assert f" ms in {fast}, 2" in said[0] and said[0].endswith(f" ms in {slow}; {fast} is used")


def test_a_runtime_that_refuses_the_export_is_not_the_fastest(free, monkeypatch):
    def refuse(folder, manifest):
        raise UserError("too old")

    monkeypatch.setattr(onnx_format, "load_onnxruntime", refuse)
    said = []
    backend = stillbox.load(free.folder, runtime="fastest", say=said.append).backend
    assert backend.runtime == "openvino" and "onnxruntime refuses it (too old)" in said[0]
    monkeypatch.setattr(onnx_format, "load_openvino", refuse)
    with pytest.raises(UserError, match="too old"):
        stillbox.load(free.folder, runtime="fastest")


def test_openvino_is_loaded_without_its_telemetry(free):
    load(free.folder, free.manifest, "openvino")
    assert "openvino_telemetry" not in sys.modules


def test_signals_are_handled_after_two_models_were_dropped_by_openvino(free):
    pytest.importorskip("openvino")
    code = """
import signal, sys
from pathlib import Path
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.onnx.format import load_openvino

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
    with refused(None, absent) as caught:
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
    with refused("model.onnx") as caught:
        load(tmp_path, free.manifest, runtime)
    assert ">=" in caught.value.fix


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_input_that_does_not_fit_is_refused(free, runtime):
    run = load(free.folder, free.manifest, runtime)
    with refused("free/model.onnx", "uint8", "[1, 8, 8, 4]"):
        run(np.zeros((1, 8, 8, 4), np.uint8))


def test_the_export_says_that_openvino_computes_in_bfloat16_by_default(free):
    assert free.manifest.needs["INFERENCE_PRECISION_HINT"].startswith("f32 in OpenVINO")
    assert "bfloat16" in free.manifest.needs["INFERENCE_PRECISION_HINT"]


def test_openvino_in_float32_and_by_its_defaults_are_two_runtimes(free, images, monkeypatch):
    core, settings = openvino_core(), []

    def compile_model(model, device, given):
        settings.append(given)
        return core.compile_model(model, device, given)

    fake = SimpleNamespace(read_model=core.read_model, compile_model=compile_model)
    monkeypatch.setattr(onnx_format, "openvino_core", lambda: fake)
    for runtime in ("openvino", "openvino_default"):
        load(free.folder, free.manifest, runtime)(images[0][None])
    assert [options.get("INFERENCE_PRECISION_HINT") for options in settings] == ["f32", None]


def test_the_fastest_runtime_is_one_that_computes_in_float32(free, monkeypatch):
    monkeypatch.setattr(onnx_format, "load_openvino_default", None)
    said = []
    stillbox.load(free.folder, runtime="fastest", say=said.append)
    assert "openvino_default" not in said[0]
