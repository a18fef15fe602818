"""EfficientDet-Lite in integers: ranges that are measured on images, and ranges of training."""

import dataclasses
from collections import Counter

import jax
import numpy as np
import pytest

from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite.format import FILE
from stillbox.exporting.tflite.metadata import operators
from stillbox.models.build import build_detector
from stillbox.models.layers.quantization import set_training_step
from stillbox.models.variables import bind_detector, read_statistics, split_detector

# Minutes, most of them in converters.
pytestmark = pytest.mark.slow

SIDE = 192
SETTINGS = ExportSettings(format="tflite", quantize="int8")
SMALLER = (
    f"model.resizer={{kind: fixed_shape, height: {SIDE}, width: {SIDE}}}",
    "model.backbone.width_coefficient=0.5",
    "model.neck.num_repeats=1",
    "model.head.layers_before=1",
    "data.evaluation.label_map=coco",
)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8) for _ in range(3)]


def fresh(*overrides):
    experiment = resolve("efficientdet_lite0", changes_of([*SMALLER, *overrides])).experiment
    quantization = experiment.train.quantization
    graph, params, stats = split_detector(
        build_detector(experiment.model, quantization=quantization)
    )
    return graph, TrainedModel(experiment, None, params, stats, "fresh").named_by_config()


def measured(images):
    """The model as after some steps of training for integers at a rate of 0."""
    graph, model = fresh("train.quantization={delay: 0}")

    @jax.jit
    def measure(params, stats, batch, step):
        detector = bind_detector(graph, params, stats)
        set_training_step(detector, step)
        detector(batch, train=True, dropout_key=jax.random.key(0))
        return read_statistics(detector)

    stats = model.stats
    for step in range(3):
        stats = measure(model.params, stats, np.stack(images).astype(np.float32), np.int32(step))
    return dataclasses.replace(model, stats=stats)


# The stem, 15 expansions and 16 blocks; six projections and eight convolutions of the cell.
TRUNK = {"CONV_2D": 1 + 15 + 16 + 6 + 8, "DEPTHWISE_CONV_2D": 16 + 8, "ADD": 9 + 11}
# A tower's layer and a predictor, of boxes and classes on five maps.
HEAD = {"CONV_2D": 20, "DEPTHWISE_CONV_2D": 20}


def network(path):
    """Numbers of convolutions and of sums by kind and type of their results."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    assert "CUSTOM" not in operators(path.read_bytes())
    runtime = interpreter.Interpreter(str(path))
    types = {
        tensor["index"]: np.dtype(tensor["dtype"]).name for tensor in runtime.get_tensor_details()
    }
    operations = [
        (operation["op_name"], types[operation["outputs"][0]])
        for operation in runtime._get_ops_details()
    ]
    return Counter((kind, of) for kind, of in operations if kind in TRUNK and of != "int32")


def check_types(result):
    """The head's weights alone are integers: it has a norm of each map behind one kernel."""
    counts = network(result.folder / FILE)
    # Sums behind the network, which decode, are of floats.
    del counts["ADD", "float32"]
    expected = {(kind, "int8"): count for kind, count in TRUNK.items()}
    assert counts == expected | {(kind, "float32"): count for kind, count in HEAD.items()}


def test_ranges_that_are_measured_on_images(images, tmp_path):
    for package in ("litert_converter", "ai_edge_quantizer"):
        pytest.importorskip(package)
    _, model = fresh()
    check_types(export_model(model, tmp_path / "out", SETTINGS, images))


def test_ranges_of_training(images, tmp_path):
    for package in ("litert_converter", "ai_edge_quantizer"):
        pytest.importorskip(package)
    check_types(export_model(measured(images), tmp_path / "out", SETTINGS, []))
