"""Weights of graphs: a small detector, folded as converters do it, is read back."""

import numpy as np
import pytest

from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.models.build import abstract_detector
from stillbox.records.wire import bytes_field, varint_field
from tests.small import SMALL
from tools.fuzz.graphs import Node, tfjs, tflite, write_files

EPSILON = 0.001


def small_model(*overrides):
    return resolve("demo_scenes", (*SMALL, *overrides)).experiment.model


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def shapes(model):
    _, params, stats = abstract_detector(model, "float32")
    return params | stats


@pytest.fixture(scope="module")
def arrays(shapes):
    """Values of all parameters and moving statistics; variances are positive."""
    rng = np.random.default_rng(0)
    return {
        path: rng.uniform(0.5, 2, own.shape).astype(np.float32)
        if path.endswith(("var", "scale"))
        else rng.normal(0, 0.5, own.shape).astype(np.float32)
        for path, own in shapes.items()
    }


def effect(arrays, layer):
    """Kernel and offset that a convolution has together with its norm."""
    kernel, norm = arrays[f"{layer}.kernel"].astype(np.float64), f"{layer}.norm"
    if f"{norm}.var" not in arrays:
        return kernel, arrays[f"{layer}.bias"]
    factor = arrays[f"{norm}.scale"] / np.sqrt(arrays[f"{norm}.var"].astype(np.float64) + EPSILON)
    offset = arrays[f"{norm}.bias"] - arrays[f"{norm}.mean"] * factor
    return kernel * (factor[:, None] if "depthwise" in layer else factor), offset


LAYERS = {
    "conv_0": ("Conv2D", "image"),
    "conv_1_depthwise": ("DepthwiseConv2dNative", "conv_0"),
    "conv_1_pointwise": ("Conv2D", "conv_1_depthwise"),
    "conv_2_depthwise": ("DepthwiseConv2dNative", "conv_1_pointwise"),
    "conv_2_pointwise": ("Conv2D", "conv_2_depthwise"),
    "map_0.box": ("Conv2D", "conv_1_pointwise"),
    "map_0.class_": ("Conv2D", "conv_1_pointwise"),
    "map_1.box": ("Conv2D", "conv_2_pointwise"),
    "map_1.class_": ("Conv2D", "conv_2_pointwise"),
}


def path_of(layer):
    return f"{'head' if layer.startswith('map') else 'backbone'}.{layer}"


def folded(arrays, *, scores=True):
    """Nodes and constants of the small detector, whose names say nothing."""
    names = {layer: f"op_{number}" for number, layer in enumerate(LAYERS)}
    nodes, constants = [], {}
    for layer, (operation, source) in LAYERS.items():
        name, inside = names[layer], layer.startswith("conv")
        kernel, offset = effect(arrays, path_of(layer))
        constants |= {f"{name}_k": kernel, f"{name}_b": offset}
        inputs = [names.get(source, source), f"{name}_k", f"{name}_b"]
        fused = ["BiasAdd", "Relu6"] if inside else ["BiasAdd"]
        nodes.append(Node(operation, name, inputs, fused))
        if layer.endswith("class_") and scores:
            nodes.append(Node("Sigmoid", f"{name}_scores", [name]))
    # Converters write operations in any order.
    return nodes[::-1], constants


WRITERS = {
    "tfjs": lambda folder, *graph: write_files(folder / "m", tfjs(*graph, shards=3)),
    "tflite": lambda folder, *graph: write_files(folder, {"m.tflite": tflite(*graph)}),
}
# The greatest difference to the greatest weight of a kernel.
PRECISION = {"float32": 1e-6, "float16": 1e-3, "uint16": 1e-4, "uint8": 1e-2, "int8": 1e-2}


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        *(("tfjs", stored) for stored in ("float32", "float16", "uint8", "uint16")),
        *(("tflite", stored) for stored in ("float32", "float16", "uint8", "int8")),
    ],
)
def test_a_folded_graph_without_names_gives_back_the_detector(
    model, shapes, arrays, tmp_path, kind, stored
):
    path = WRITERS[kind](tmp_path, *folded(arrays), stored)
    report, read = read_weights(shapes, model, path, ImportOptions())
    assert len(read) == len(shapes) == len(report.loaded)
    assert not report.skipped
    for layer in map(path_of, LAYERS):
        for ours, theirs in zip(effect(read, layer), effect(arrays, layer), strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=0, atol=PRECISION[stored] * np.abs(theirs).max()
            )
        if layer.startswith("backbone"):
            assert np.all(read[f"{layer}.norm.mean"] == 0)
            np.testing.assert_allclose(read[f"{layer}.norm.var"], 1 - EPSILON)


def imported(model, path, **options):
    _, params, stats = abstract_detector(model, "float32")
    return read_weights(params | stats, model, path, ImportOptions(**options))


@pytest.mark.parametrize("kind", WRITERS)
def test_the_folder_of_a_graph_opens_it(arrays, tmp_path, kind):
    path = WRITERS[kind](tmp_path, *folded(arrays))
    assert open_weights(path.parent).path == str(path)


@pytest.mark.parametrize(
    ("steps", "factor"),
    [
        # A converter has folded the division of pixels into the kernel, the demo's mean and
        # deviation are 127.5.
        ([("Sub", 127.5)], 127.5),
        ([("Sub", [127.5] * 3)], 127.5),
        # It has not.
        ([("Sub", 127.5), ("RealDiv", 127.5)], 1),
        ([("Mul", 2 / 255), ("Sub", 1.0)], 1),
        # Pixels are 0..1; they are normalised before they come here.
        ([("Sub", 0.5), ("RealDiv", 0.5)], 1),
        ([("Mul", 2.0)], 1),
    ],
)
def test_a_division_of_pixels_that_is_folded_into_the_first_kernel_is_undone(
    model, arrays, tmp_path, steps, factor
):
    nodes, constants = folded(arrays)
    value = "pixels"
    for number, (operation, constant) in enumerate(steps):
        constants[f"c{number}"] = np.array(constant)
        nodes.append(Node(operation, name := f"p{number}", [value, f"c{number}"]))
        value = name
    nodes.append(Node("Pad", "image", [value, "paddings"]))
    constants["op_0_k"] = constants["op_0_k"] / factor
    _, read = imported(model, WRITERS["tfjs"](tmp_path, nodes, constants))
    kernel, _ = effect(arrays, "backbone.conv_0")
    np.testing.assert_allclose(read["backbone.conv_0.kernel"], kernel, rtol=1e-5)


def test_heads_of_other_classes_are_told_apart_from_boxes(arrays, tmp_path):
    path = WRITERS["tflite"](tmp_path, *folded(arrays))
    other = small_model("model.num_classes=30")
    with pytest.raises(UserError, match=r"shapes of heads differ.*load_heads=false"):
        imported(other, path)
    report, read = imported(other, path, min_loaded=0.5)
    assert {own.path.rpartition(".")[0] for own in report.mismatched} == {
        "head.map_0.class_",
        "head.map_1.class_",
    }
    assert np.array_equal(read["head.map_1.box.bias"], arrays["head.map_1.box.bias"])
    assert not report.departure


@pytest.mark.parametrize("scores", [True, False], ids=["by scores", "by names"])
def test_heads_of_the_same_shape_are_told_apart(tmp_path, scores):
    # Three classes and the background are as many channels as the coordinates of a box.
    model = small_model("model.num_classes=3")
    _, params, stats = abstract_detector(model, "float32")
    rng = np.random.default_rng(1)
    values = {path: rng.uniform(0.5, 1, own.shape) for path, own in (params | stats).items()}
    nodes, constants = folded(values, scores=scores)
    if not scores:
        names = {f"op_{number}": layer for number, layer in enumerate(LAYERS)}
        nodes = [
            node._replace(
                name=f"{names[node.name]}Predictor", inputs=[
                    f"{names[own]}Predictor" if own in names else own for own in node.inputs
                ],
            )
            for node in nodes
        ]  # fmt: skip
    _, read = imported(model, WRITERS["tfjs"](tmp_path, nodes, constants))
    for layer in ("head.map_0.box", "head.map_0.class_", "head.map_1.box", "head.map_1.class_"):
        np.testing.assert_allclose(read[f"{layer}.kernel"], values[f"{layer}.kernel"], rtol=1e-6)


def test_the_backbone_of_a_classifier_is_found(model, arrays, tmp_path):
    nodes, constants = folded(arrays)
    kept = [node for node in nodes if "Relu6" in node.fused]
    path = WRITERS["tflite"](tmp_path, kept, constants)
    report, read = imported(model, path, scope="classification")
    assert set(read) == {path for path in arrays if path.startswith("backbone.")}
    assert not report.departure


@pytest.mark.parametrize("frozen", [True, False])
def test_training_is_told_that_statistics_are_lost(arrays, tmp_path, frozen):
    model = small_model(f"model.freeze_batch_norm={str(frozen).lower()}")
    path = WRITERS["tflite"](tmp_path, *folded(arrays))
    report, _ = imported(model, path, measures_ranges=True)
    notes = [note for note in report.notes if "5 batch norms folded into kernels" in note]
    assert len(notes) == (not frozen)
    report, _ = imported(model, path)
    assert not report.notes


def test_a_graph_of_another_model_is_refused_by_its_first_other_layer(arrays, tmp_path):
    path = WRITERS["tflite"](tmp_path, *folded(arrays))
    wide = small_model("model.backbone.depth_multiplier=0.5")
    with pytest.raises(UserError) as caught:
        imported(wide, path)
    assert "of another model: backbone.conv_0.kernel: [3, 3, 3, 8] in the graph" in caught.value.fix
    assert "[3, 3, 3, 16] wanted" in caught.value.fix
    with pytest.raises(UserError, match=r"no convolution for backbone\.stem\.kernel"):
        imported(resolve("ssd_resnet34").experiment.model, path)


def constant_nodes(constants):
    """Protobuf nodes of float32 constants, field by field as in `tensor.proto`."""
    nodes = b""
    for name, array in constants.items():
        axes = b"".join(
            bytes_field(2, varint_field(1, axis) if axis else b"") for axis in array.shape
        )
        tensor = varint_field(1, 1) + bytes_field(2, axes)
        tensor += bytes_field(4, array.astype("<f4").tobytes())
        value = bytes_field(1, b"value") + bytes_field(2, bytes_field(8, tensor))
        own = bytes_field(1, name.encode()) + bytes_field(2, b"Const") + bytes_field(5, value)
        nodes += bytes_field(1, own)
    return nodes


def test_a_frozen_graph_with_folded_norms_is_read(model, arrays, tmp_path):
    nodes, constants = folded(arrays)
    data = constant_nodes(constants)
    for node in nodes:
        own = bytes_field(1, node.name.encode()) + bytes_field(2, node.operation.encode())
        own += b"".join(bytes_field(3, name.encode()) for name in node.inputs)
        fused = b"".join(bytes_field(2, name.encode()) for name in node.fused)
        attribute = bytes_field(1, b"fused_ops") + bytes_field(2, bytes_field(1, fused))
        data += bytes_field(1, own + bytes_field(5, attribute))
    path = write_files(tmp_path, {"frozen_inference_graph.pb": data})
    report, read = imported(model, path)
    assert len(report.loaded) == len(arrays)
    np.testing.assert_allclose(
        read["backbone.conv_2_pointwise.kernel"],
        effect(arrays, "backbone.conv_2_pointwise")[0],
        rtol=1e-6,
    )
