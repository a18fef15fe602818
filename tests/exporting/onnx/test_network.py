"""The network of every architecture as an ONNX graph."""

import dataclasses
from collections import Counter

import jax
import numpy as np
import pytest

from stillbox.checkpoints.trained import TrainedModel
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.exporting.onnx.format import raw_model
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.models.build import build_detector
from stillbox.models.layers.lowering.calls import plain_lowering
from stillbox.models.variables import split_detector
from tests.exporting.onnx.runtimes import RUNTIMES, loaded

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
    """A detector whose weights and statistics are all drawn, so that none is neutral."""
    experiment = resolve(recipe, overrides).experiment
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


def exported(model):
    return ExportProgram(model, ExportSettings(format="onnx", batch_size=0))


def wanted(program, images):
    sizes = np.tile(np.int32(program.input_size), (len(images), 1))

    def function(weights, images):
        _, candidates = program.detect(weights, images, sizes)
        return candidates.boxes, candidates.scores[..., -program.description.num_classes :]

    # Half of the time goes into XLA's optimisations, which a few images do not pay back.
    options = {"xla_backend_optimization_level": 0}
    with plain_lowering():
        return jax.jit(function, compiler_options=options)(program.weights, images)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=[pytest.mark.slow] if "mbconv" in name else []) for name in MODELS],
)
def test_equals_the_network(recipe):
    program = exported(random_model(recipe, MODELS[recipe]))
    images = np.random.default_rng(1).uniform(0, 255, (2, *program.input_size, 3))
    images = images.astype(np.float32)
    model, expected = raw_model(program), wanted(program, images)
    for runtime in RUNTIMES:
        boxes, scores = loaded(model, runtime)({"pixels": images})
        np.testing.assert_allclose(boxes, expected[0], atol=1e-4)
        np.testing.assert_allclose(scores, expected[1], atol=1e-4)
    # Weights stand in the file once, also those that layers share.
    weights = sum(array.nbytes for arrays in program.weights.values() for array in arrays.values())
    anchors = expected[0][0].nbytes
    assert model.ByteSize() < 1.05 * weights + anchors + 100_000


def test_batch_norms_are_part_of_their_convolutions(model):
    nodes = raw_model(exported(model)).graph.node
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
    with pytest.raises(UserError, match="cannot be written as ONNX"):
        raw_model(exported(curved))
