"""TFLite models that end in `TFLite_Detection_PostProcess`, and the operations of the Edge TPU."""

import argparse
import dataclasses
import re
from pathlib import Path

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.cli.export import _ALIASES, add_export
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.export import export_model
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite import detection_op
from stillbox.exporting.tflite.conversion import INPUT, convert
from stillbox.exporting.tflite.edge_tpu import check_operations
from stillbox.exporting.tflite.format import FILE, load
from stillbox.exporting.tflite.metadata import OUTPUTS, operators
from stillbox.exporting.tflite.quantization import quantize
from stillbox.lowering import lowering, lowering_for_tflite
from stillbox.models.layers.resampling import upsample
from stillbox.models.one_stage.detector import decode_boxes
from tests.helpers import refused

pytest.importorskip("litert_converter")
pytest.importorskip("ai_edge_quantizer")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")
flexbuffers = pytest.importorskip("flatbuffers.flexbuffers")

pytestmark = pytest.mark.xdist_group("tflite")

DOCS = Path(__file__).resolve().parents[2] / "docs"
SETTINGS = ExportSettings(format="tflite", postprocess="detection_op", max_detections=5)
INTEGERS = dataclasses.replace(SETTINGS, quantize="int8")


def changed(model, **fields):
    """The model with other fields of its detector."""
    detector = dataclasses.replace(model.experiment.model, **fields)
    return dataclasses.replace(
        model, experiment=dataclasses.replace(model.experiment, model=detector)
    )


@pytest.fixture(scope="module")
def plain(model):
    """The model with one mean and one scale of its pixels."""
    halves = schema.PixelNormalization(mean=(127.5,) * 3, std=(127.5,) * 3)
    return changed(model, pixels=halves)


@pytest.fixture(scope="module")
def floats(plain, images, tmp_path_factory):
    return export_model(plain, tmp_path_factory.mktemp("op") / "float", SETTINGS, images)


@pytest.fixture(scope="module")
def integers(plain, images, tmp_path_factory):
    return export_model(plain, tmp_path_factory.mktemp("op") / "int8", INTEGERS, images)


def custom_operation(content):
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    operation = model.subgraphs[0].operators[-1]
    code = model.operatorCodes[operation.opcodeIndex]
    return model, operation, code


def test_the_float_artefact_equals_its_checkpoint(floats):
    assert floats.verification.detections > 5
    assert floats.verification.max_score_difference < 1e-5


def test_the_operation_has_the_options_of_the_original(floats, plain):
    _, operation, code = custom_operation((floats.folder / FILE).read_bytes())
    assert code.customCode == b"TFLite_Detection_PostProcess"
    options = flexbuffers.Loads(bytes(operation.customOptions))
    nms = plain.experiment.model.postprocessing.nms
    assert options == {
        "max_detections": 5,
        "max_classes_per_detection": 1,
        "detections_per_class": nms.max_per_class,
        "use_regular_nms": True,
        "nms_score_threshold": pytest.approx(nms.score_threshold),
        "nms_iou_threshold": pytest.approx(nms.iou_threshold),
        "num_classes": plain.experiment.model.num_classes,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    }


def test_anchors_are_centres_and_sizes(floats, plain):
    model, operation, _ = custom_operation((floats.folder / FILE).read_bytes())
    tensor = model.subgraphs[0].tensors[operation.inputs[2]]
    anchors = np.frombuffer(bytes(model.buffers[tensor.buffer].data), np.float32).reshape(-1, 4)
    program = ExportProgram(plain, SETTINGS)
    corners = np.asarray(detection_op._detector(program).anchors)
    half = anchors[:, 2:] / 2
    rebuilt = np.concatenate([anchors[:, :2] - half, anchors[:, :2] + half], axis=1)
    np.testing.assert_allclose(rebuilt, corners, atol=1e-6)


@pytest.mark.parametrize(
    "coder",
    [schema.MeanStddevBoxCoder(stddev=0.5), schema.FasterRcnnBoxCoder(max_log_ratio=4.0)],
    ids=["kind", "ratio"],
)
def test_the_network_decodes_boxes_that_the_operation_does_not(plain, images, coder):
    program = ExportProgram(changed(plain, box_coder=coder), SETTINGS)
    image = jnp.asarray(cv2.resize(images[0], (64, 64))[None])
    codes, _ = detection_op.raw_predictions(program)(image)
    options = flexbuffers.Loads(detection_op._options(program))
    assert [options[f"{name}_scale"] for name in "yxhw"] == [1, 1, 1, 1]
    middle, side = np.split(detection_op._anchors(program), 2, axis=1)
    # The computation of `DecodeCenterSizeBoxes` of the original.
    center = np.asarray(codes)[0, :, :2] * side + middle
    half = np.exp(np.asarray(codes)[0, :, 2:]) * side / 2
    detector = detection_op._detector(program)
    wanted = decode_boxes(
        detector(image.astype(jnp.float32), train=False).box_encodings,
        detector.anchors,
        program.description,
    )[0]
    got = np.concatenate([center - half, center + half], axis=1)
    np.testing.assert_allclose(got, np.asarray(wanted), atol=1e-5)


def test_integers_take_bytes_and_return_the_four_outputs_in_order(integers):
    runtime = interpreter.Interpreter(str(integers.folder / FILE))
    (image,) = runtime.get_input_details()
    assert image["dtype"] == np.uint8
    scale, zero = image["quantization"]
    assert (scale, zero) == (pytest.approx(1 / 127.5), 128)
    outputs = runtime.get_output_details()
    assert tuple(output["name"] for output in outputs) == OUTPUTS
    assert {output["dtype"] for output in outputs} == {np.float32}
    names = operators((integers.folder / FILE).read_bytes())
    assert names <= {
        *("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "PAD", "RESHAPE", "CONCATENATION", "LOGISTIC"),
        *("QUANTIZE", "DEQUANTIZE", "CUSTOM", "RELU6", "MAX_POOL_2D"),
    }


def test_integers_are_close_to_the_float_model(integers, floats, images):
    image = cv2.resize(images[0], (64, 64))[None]
    got, wanted = (load(export.folder, export.manifest)(image) for export in (integers, floats))
    np.testing.assert_allclose(got["detection_scores"], wanted["detection_scores"], atol=0.1)


def test_a_channel_without_weights_keeps_its_bias():
    kernel = np.full((1, 1, 3, 2), 0.1, np.float32)
    kernel[..., 1] = 1e-13
    bias = np.array([0.5, -3.0], np.float32)

    def network(images):
        with jax.named_scope("head"), jax.named_scope("class_"):
            result = jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return (result + bias,)

    shape = jax.ShapeDtypeStruct((1, 4, 4, 3), np.float32)
    with lowering(portable=True):
        content = convert(network, shape, INPUT)
    image = np.random.default_rng(0).uniform(-1, 1, shape.shape).astype(np.float32)
    wanted = np.asarray(network(jnp.asarray(image))[0])
    result = quantize(content, [image], part="model")
    runtime = interpreter.Interpreter(model_content=result)
    (got,) = runtime.get_signature_runner()(**{INPUT: image}).values()
    np.testing.assert_allclose(got, wanted, atol=0.05)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: (jnp.sort(x, axis=1),), "not among its operations"),
        (lambda x: (jax.nn.softmax(x),), "must be one row of at most 16,000"),
        (lambda x: (jnp.mean(x, axis=3),), "3 channels, which are no multiple of 4"),
    ],
    ids=["unknown", "softmax", "channels"],
)
def test_the_first_operation_that_the_edge_tpu_lacks_is_named(function, reason):
    shape = jax.ShapeDtypeStruct((1, 4, 4, 3), np.float32)
    content = convert(function, shape, INPUT)
    with refused("", "TPU") as refusal:
        check_operations(content, quantized=False)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("factor", [2, 4])
def test_the_edge_tpu_enlarges_the_maps_of_a_pyramid(factor):
    x = np.random.default_rng(0).normal(size=(1, 3, 2, 5)).astype(np.float32)
    with lowering_for_tflite():
        content = convert(
            lambda array: (upsample(array, factor),), jax.ShapeDtypeStruct(x.shape, x.dtype), INPUT
        )
    check_operations(content, quantized=False)
    runtime = interpreter.Interpreter(model_content=content)
    (got,) = runtime.get_signature_runner()(**{INPUT: x}).values()
    np.testing.assert_array_equal(got, x.repeat(factor, axis=1).repeat(factor, axis=2))


def test_floats_are_not_integers():
    content = convert(lambda x: (x + 1,), jax.ShapeDtypeStruct((1, 4, 4, 3), np.float32), INPUT)
    check_operations(content, quantized=False)
    with refused("", "float32", "8-bit"):
        check_operations(content, quantized=True)


COLOURED = schema.PixelNormalization(mean=(124.0, 116.0, 104.0), std=(1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"pixels": COLOURED}, INTEGERS, "normalised channel by channel"),
        (
            {"box_coder": schema.FasterRcnnBoxCoder(max_log_ratio=4.0)},
            INTEGERS,
            "with max_log_ratio 4.0 the network decodes the boxes",
        ),
        ({"box_coder": schema.MeanStddevBoxCoder()}, INTEGERS, "with kind mean_stddev the network"),
    ],
    ids=["pixels", "ratio", "coder"],
)
def test_detectors_that_do_not_fit_are_refused_by_the_field(model, fields, settings, message):
    program = ExportProgram(changed(model, **fields), settings)
    with pytest.raises(UserError, match=message):
        detection_op.of_normalized_pixels(program)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"format": "onnx"}, "postprocess"),
        ({"quantize": "int8", "input_type": "float_image_tensor"}, "input_type"),
        ({"postprocess": "custom"}, "postprocess"),
    ],
    ids=["format", "input", "word"],
)
def test_settings_that_do_not_fit_are_refused(settings, where):
    with pytest.raises(UserError) as refusal:
        dataclasses.replace(SETTINGS, **settings).checked()
    assert refusal.value.about.name == where


def test_the_command_of_the_page_has_these_settings():
    page = (DOCS / "edge.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^stillbox (export .*)$", page, re.MULTILINE)
    parser = argparse.ArgumentParser()
    add_export(parser)
    arguments = parser.parse_args(command.split()[1:])
    assert arguments.format == INTEGERS.format
    assert arguments.postprocess == INTEGERS.postprocess
    assert arguments.quantize == INTEGERS.quantize
    assert _ALIASES[arguments.input_type] == INTEGERS.input_type


@pytest.mark.proof
def test_mediapipe_accepts_the_operation(integers, images):
    mediapipe = pytest.importorskip("mediapipe")
    tasks = mediapipe.tasks
    options = tasks.vision.ObjectDetectorOptions(
        tasks.BaseOptions(model_asset_path=str(integers.folder / FILE)), max_results=5
    )
    with tasks.vision.ObjectDetector.create_from_options(options) as detector:
        picture = mediapipe.Image(mediapipe.ImageFormat.SRGB, cv2.resize(images[0], (64, 64)))
        assert detector.detect(picture).detections
