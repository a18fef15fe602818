"""The float detector and the ranges of tensors for the integers of training."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox import extras
from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite import quantization
from stillbox.exporting.tflite.conversion import SIGNATURE, convert
from stillbox.exporting.tflite.quantization import float_program, tensor_ranges
from stillbox.models.build import abstract_detector
from stillbox.models.variables import bind_detector
from stillbox.references import Parameter
from tests.helpers import refused
from tests.small import SMALL


def drawn(path, shape, rng):
    """Kernels that keep the size of their input, sound statistics, wide ranges."""
    if path.endswith("kernel"):
        inputs = shape[:2] if "depthwise" in path else shape[:-1]
        return rng.normal(0, np.sqrt(2 / np.prod(inputs)), shape)
    if path.endswith((".min", ".max")):
        return np.float32(-16 if path.endswith("min") else 16)
    return rng.uniform(0.5, 1.5, shape)


@pytest.fixture(scope="module")
def program():
    # Results of 16 bits are almost exact; kernels of 6 bits are clearly rounded.
    coarse = "train.quantization={delay: 0, weight_bits: 6, activation_bits: 16}"
    experiment = resolve("demo_scenes", changes_of([*SMALL, coarse])).experiment
    quantization, rng = experiment.train.quantization, np.random.default_rng(0)
    _, *shapes = abstract_detector(experiment.model, "float32", quantization)
    params, stats = (
        {
            path: jnp.asarray(drawn(path, array.shape, rng), jnp.float32)
            for path, array in some.items()
        }
        for some in shapes
    )
    model = TrainedModel(experiment, None, params, stats, "drawn")
    return ExportProgram(model, ExportSettings(format="tflite"))


def predictions(program, images):
    weights = program.weights

    @jax.jit
    def run(params, stats):
        return bind_detector(program.detector.graph, params, stats)(images, train=False)

    return run(weights["params"], weights["stats"])


def test_the_float_detector_has_the_rounded_kernels_and_no_norm(program):
    images = jnp.asarray(np.random.default_rng(1).uniform(0, 255, (1, 64, 64, 3)), jnp.float32)
    plain, ranges = float_program(program)
    model = program.model
    stats = {path: model.stats[path] for path in plain.model.stats}
    unrounded = replace(plain, model=replace(plain.model, params=model.params, stats=stats))
    ours, expected, before = (
        predictions(variant, images) for variant in (plain, program, unrounded)
    )
    for mine, theirs, other in zip(ours, expected, before, strict=True):
        distance = np.abs(mine - theirs).max()
        assert distance < 0.02
        assert np.abs(other - theirs).max() > 10 * distance
    assert plain.quantization is None
    assert not any(path.endswith((".min", ".max")) for path in plain.model.stats)
    assert ranges["head.map_1.box.act_quant"] == (-16.0, 16.0)


RANGES = {
    "backbone.block_1_project.act_quant": (-1.0, 1.0),
    "backbone.block_1_sum": (-2.0, 2.0),
    "neck.smoothing_1.depthwise_act_quant": (-3.0, 3.0),
    "neck.smoothing_1.act_quant": (0.0, 4.0),
    "neck.sum_1": (-5.0, 5.0),
    "head.map_0.box.act_quant": (-6.0, 6.0),
    "head.map_0.class_.act_quant": (-8.0, 8.0),
    "head.box_tower.layer_0.conv.act_quant_1": (0.0, 7.0),
}
# Kind, first input and result, as LiteRT's converter has named them.
OPERATIONS = [
    ("SUB", "image", "jit(detect)/pixels/sub1", None),
    (
        "CONV_2D",
        "jit(detect)/pixels/sub1",
        "jit(detect)/backbone/block_1_project/sub;pad;jit(detect)/backbone/block_1_project/add2",
        (-1.0, 1.0),
    ),
    ("ADD", "x", "jit(detect)/backbone/block_1_sum/add", (-2.0, 2.0)),
    ("MAX_POOL_2D", "jit(detect)/backbone/block_1_sum/add", "pooled", (-2.0, 2.0)),
    ("DEPTHWISE_CONV_2D", "x", "jit(detect)/neck/smoothing_1/convolution/conv1;pad", (-3.0, 3.0)),
    ("CONV_2D", "x", "jit(detect)/neck/smoothing_1/sub;jit(detect)/neck/conv2", (0.0, 4.0)),
    ("ADD", "x", "jit(detect)/neck/sum_1/add", (-5.0, 5.0)),
    # The padding is shared with the other convolution of the map, and the two names are joined.
    (
        "CONV_2D",
        "x",
        "jit(detect)/head/map_0/box/add;jit(detect)/head/map_0/class_/convolution/conv",
        (-6.0, 6.0),
    ),
    ("CONV_2D", "x", "jit(detect)/head/map_0/class_/convolution/conv1", (-8.0, 8.0)),
    ("CONV_2D", "x", "jit(detect)/head/map_1/box_tower/layer_0/conv/conv", (0.0, 7.0)),
    ("ADD", "x", "jit(detect)/postprocess/add2", None),
]  # fmt: skip


def ranges_of(operations, monkeypatch, parts=("backbone", "neck", "head")):
    monkeypatch.setattr(quantization, "_operations", lambda content: iter(operations))
    return tensor_ranges(b"", RANGES, parts)


def test_tensors_have_the_ranges_of_their_layers(monkeypatch):
    ranges = ranges_of([row[:3] for row in OPERATIONS], monkeypatch)
    assert ranges == {name: value for *_, name, value in OPERATIONS if value}


def test_an_operation_without_a_range_is_refused(monkeypatch):
    odd = [("CONV_2D", "x", "jit(detect)/head/map_3/box/conv")]
    with refused(Parameter("quantize")):
        ranges_of(odd, monkeypatch)
    assert ranges_of(odd, monkeypatch, parts=("backbone", "neck")) == {}


litert_converter = pytest.importorskip("litert_converter")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

pytestmark = pytest.mark.xdist_group("tflite")

PIXELS = jax.ShapeDtypeStruct((1, 4, 4, 3), np.float32)


def test_the_signature_has_the_given_input_and_numbered_outputs():
    content = convert(lambda x: (x + 1, x.sum(axis=(1, 2)), x.max()), PIXELS, "pixels")
    runtime = interpreter.Interpreter(model_content=content)
    (name,) = signatures = runtime.get_signature_list()
    assert name == SIGNATURE
    assert signatures[name]["inputs"] == ["pixels"]
    assert sorted(signatures[name]["outputs"]) == ["output_0", "output_1", "output_2"]
    pixels = np.random.default_rng(0).normal(size=PIXELS.shape).astype(np.float32)
    outputs = runtime.get_signature_runner()(pixels=pixels)
    np.testing.assert_array_equal(outputs["output_0"], pixels + 1)
    np.testing.assert_allclose(outputs["output_1"], pixels.sum(axis=(1, 2)), rtol=1e-5)
    assert outputs["output_2"] == pixels.max()


def test_tensors_have_the_names_of_scopes():
    def function(x):
        with jax.named_scope("backbone"), jax.named_scope("conv_0"):
            return (jnp.exp(jnp.tanh(x)),)  # a result of the model has its own name

    runtime = interpreter.Interpreter(model_content=convert(function, PIXELS, "pixels"))
    names = [tensor["name"] for tensor in runtime.get_tensor_details()]
    assert any("backbone/conv_0/tanh" in name for name in names), names


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: (jnp.linalg.eigh(x[0, :3, :3, 0])[0],), "stablehlo.custom_call"),
        (lambda x: (jnp.fft.fft(x).real,), "Failed to export"),
    ],
    ids=["decomposition", "spectrum"],
)
def test_a_refusal_is_one_sentence(function, reason, capfd):
    with refused(Parameter("format", "tflite"), "TensorFlow") as refusal:
        convert(function, PIXELS, "pixels")
    assert reason in str(refusal.value)
    assert len(str(refusal.value).splitlines()) <= 2
    assert "format=" in refusal.value.fix
    capfd.readouterr()


def test_platforms_without_a_converter_are_refused(monkeypatch):
    monkeypatch.setattr(extras.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(extras.platform, "system", lambda: "Linux")
    monkeypatch.setitem(sys.modules, "litert_converter", None)
    with pytest.raises(extras.NotInstalledError, match="aarch64") as refusal:
        convert(lambda x: (x,), PIXELS, "pixels")
    assert "x86-64" in refusal.value.fix
