"""Heads with distributions, group norm and resampled edges in every format."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.exporting.export import export_model
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite import detection_op
from stillbox.exporting.tflite.metadata import operators
from stillbox.exporting.tflite.quantization import float_program
from stillbox.models.build import build_detector
from stillbox.models.layers.quantization import set_training_step
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from stillbox.records.label_map import LabelMap
from tests.small import BATCH_NORM, DENSE, DENSE_HEADS

# One worker imports TensorFlow.
pytestmark = pytest.mark.xdist_group("tensorflow")

INTEGERS = ExportSettings(format="tflite", quantize="int8")
NORMS = {"group_norm": (), "batch_norm": (BATCH_NORM,)}
# The packages that write or run a format; a SavedModel is compared without TensorFlow too.
FORMATS = {
    "stablehlo": "jax",
    "saved_model": "jax",
    "onnx": "onnxruntime",
    "tflite": "litert_converter",
}
# The other two hold the program of JAX, which takes longest to compile.
_FAST = {("gfl", "onnx", "group_norm"), ("gfl", "tflite", "group_norm")}
_FORMS = [
    pytest.param(*form, id="-".join(form), marks=[] if form in _FAST else [pytest.mark.slow])
    for form in itertools.product(DENSE_HEADS, FORMATS, NORMS)
]


def built(experiment):
    return build_detector(experiment.model, quantization=experiment.train.quantization)


def drawn(head, norm, *overrides):
    """A detector; its boxes and scores depend on the image, and its maps differ by a factor."""
    words = [*DENSE_HEADS[head], *DENSE, *NORMS[norm], *overrides]
    return with_drawn_weights(resolve("demo_scenes", changes_of(words)).experiment)


def with_drawn_weights(experiment):
    """The model of an experiment with six classes, with the weights of `drawn`."""
    _, params, stats = split_detector(built(experiment))
    rng = np.random.default_rng(0)

    def value(path, array):
        if array.ndim > 1:
            inputs = array.shape[:2] if "depthwise" in path else array.shape[:-1]
            return rng.normal(0, np.sqrt(2 / np.prod(inputs)), array.shape)
        if path.startswith("head.scale_"):
            return rng.uniform(0.5, 1.5)
        # Scores far enough from one another to be distinguished.
        return np.zeros(array.shape) if path.startswith("head.class_.bias") else np.asarray(array)

    params = {path: np.float32(value(path, array)) for path, array in params.items()}
    names = "".join(f'item {{ id: {class_id} name: "n{class_id}" }}' for class_id in range(1, 7))
    return TrainedModel(experiment, LabelMap.from_text(names), params, stats, "drawn")


@pytest.fixture(scope="module")
def pictures():
    """Two pictures of coloured squares of 8 pixels, 64 x 64."""
    rng = np.random.default_rng(1)
    squares = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    return [squares, squares[::-1]]


@pytest.mark.parametrize(("head", "form", "norm"), _FORMS)
def test_detections_equal_those_of_the_checkpoint(head, form, norm, pictures, tmp_path):
    pytest.importorskip(FORMATS[form])
    settings = ExportSettings(format=form, platforms=("cpu",))
    result = export_model(drawn(head, norm), tmp_path / "out", settings, pictures)
    assert result.verification.detections == 12
    assert result.verification.max_score_difference < 1e-5
    if form == "tflite":
        names = operators((result.folder / "model.tflite").read_bytes())
        assert not {name for name in names if name in ("CUSTOM", "WHILE") or "STABLEHLO" in name}


# The whole network on a small input; two images have twelve results, as with `drawn`.
MOBILE = (
    "model.num_classes=6",
    "model.resizer={kind: fixed_shape, height: 160, width: 160}",
    "model.postprocessing.nms={max_per_class: 6, max_total: 6}",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "postprocess"), [*((form, "built_in") for form in FORMATS), ("tflite", "detection_op")]
)
def test_every_format_has_the_detections_of_the_phone_model(form, postprocess, pictures, tmp_path):
    pytest.importorskip(FORMATS[form])
    model = with_drawn_weights(resolve("gfl_mobile", changes_of(MOBILE)).experiment)
    settings = ExportSettings(format=form, platforms=("cpu",), postprocess=postprocess)
    result = export_model(model, tmp_path / "out", settings, pictures)
    assert result.verification.detections == 12
    assert result.verification.max_score_difference < 1e-5


def results(content):
    """Kinds of operations with the types of their results, and of their second inputs."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    runtime = interpreter.Interpreter(model_content=content)
    types = {
        tensor["index"]: np.dtype(tensor["dtype"]).name for tensor in runtime.get_tensor_details()
    }
    return [
        (
            operation["op_name"],
            types[operation["outputs"][0]],
            types.get([*operation["inputs"], -1][1]),
        )
        for operation in runtime._get_ops_details()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("head", DENSE_HEADS)
def test_integers_end_before_the_distributions(head, norm, pictures, tmp_path):
    for package in ("litert_converter", "ai_edge_quantizer"):
        pytest.importorskip(package)
    result = export_model(drawn(head, norm), tmp_path / "out", INTEGERS, pictures)
    kinds_of_operations = results((result.folder / "model.tflite").read_bytes())
    convolutions = [kinds[1:] for kinds in kinds_of_operations if kinds[0] == "CONV_2D"]
    # Backbone and neck compute in integers; kernels of the head are integers, its results floats.
    assert ("int8", "int8") in convolutions
    assert ("float32", "int8") in convolutions
    softmaxes = [of for kind, of, _ in kinds_of_operations if kind == "SOFTMAX"]
    assert softmaxes == ["float32"] * (head == "gfl")


WHOLE = ("model.postprocessing.nms.max_candidates_per_level=0",)
ANCHORED = (*WHOLE, "model.box_coder={kind: faster_rcnn}", "model.loss.distribution_weight=0")
EMPTY = "model.postprocessing.nms.empty_boxes=drop"
REFUSED = (
    ("gfl", (), {}, "has no max_candidates_per_level"),
    ("gfl", WHOLE, {"quantize": "int8"}, "with kind distribution the network decodes the boxes"),
    ("atss", WHOLE, {}, "multiplies no scores by the centerness"),
    ("gfl", ANCHORED, {"quantize": "int8"}, "group norm measures every image anew"),
    ("gfl", (*ANCHORED, EMPTY), {}, "keeps boxes without area"),
)


@pytest.mark.parametrize(("head", "overrides", "settings", "message"), REFUSED)
def test_a_coder_that_the_detection_operation_lacks_is_refused(head, overrides, settings, message):
    settings = ExportSettings(format="tflite", postprocess="detection_op", **settings)
    program = ExportProgram(drawn(head, "group_norm", *overrides), settings)
    with pytest.raises(UserError, match=message) as caught:
        detection_op.check_fit(program)
    assert caught.value.fix


def measured(model, images):
    """The model after a step of training for integers at a rate of 0, which measures ranges."""
    graph, _, _ = split_detector(built(model.experiment))

    @jax.jit
    def measure(params, stats, batch):
        detector = bind_detector(graph, params, stats)
        set_training_step(detector, jnp.int32(0))
        detector(batch, train=True, dropout_key=jax.random.key(0))
        return read_statistics(detector)

    stats = measure(model.params, model.stats, np.float32(np.stack(images)))
    return dataclasses.replace(model, stats=stats)


@pytest.fixture(scope="module")
def rounded(pictures):
    """A detector of training for integers; its box convolution has a factor for each map."""
    changes = ("train.quantization={delay: 0}", "model.head.depthwise=true")
    return measured(drawn("gfl", "batch_norm", *changes), pictures)


@pytest.mark.slow
def test_one_kernel_has_the_levels_of_training_on_every_map(rounded):
    plain, _ = float_program(ExportProgram(rounded, INTEGERS))
    graph, _, _ = split_detector(built(rounded.experiment))
    detector = bind_detector(graph, rounded.params, rounded.stats)
    layer, kernel = detector.head.box, plain.model.params["head.box.kernel"]
    for index in range(3):
        scale = rounded.params[f"head.scale_{index}"]
        round_kernel, _ = layer.roundings.of_map(index, train=False)
        trained = round_kernel(layer.kernel[...] * scale)
        np.testing.assert_allclose(kernel * scale, trained, atol=1e-6)
    assert len(np.unique(np.round(kernel / np.abs(kernel).max() * 1e4))) < 256


@pytest.mark.slow
def test_ranges_of_training_end_before_the_distributions(rounded, pictures, tmp_path):
    for package in ("litert_converter", "ai_edge_quantizer"):
        pytest.importorskip(package)
    result = export_model(rounded, tmp_path / "out", INTEGERS, pictures)
    kinds_of_operations = results((result.folder / "model.tflite").read_bytes())
    # The level scale is part of the kernel: every convolution has a constant one.
    assert {kernel for kind, _, kernel in kinds_of_operations if kind == "CONV_2D"} == {"int8"}
    assert [of for kind, of, _ in kinds_of_operations if kind == "SOFTMAX"] == ["float32"]
