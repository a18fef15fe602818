"""Weights of graphs: a small detector, folded as converters do it, is read back."""

import json
import struct

import flatbuffers
import numpy as np
import pytest

from stillbox.checkpoints.graphs import nanodet
from stillbox.checkpoints.graphs.graph import Layer
from stillbox.checkpoints.graphs.matching import match_layers
from stillbox.checkpoints.graphs.tfjs import TfjsModel
from stillbox.checkpoints.graphs.tflite import Table, TfliteModel
from stillbox.checkpoints.graphs.traced import ModelLayer
from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.weights_file import open_weights
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.exporting.tflite.metadata import _write
from stillbox.models.build import abstract_detector
from tests.helpers import refusal, refused
from tests.small import SMALL
from tools.fuzz.graphs import Node, frozen, tfjs, tflite, write_files

EPSILON = 0.001


def small_model(*overrides):
    return resolve("demo_scenes", changes_of((*SMALL, *overrides))).experiment.model


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
        path: rng.uniform(0.5, 2, array.shape).astype(np.float32)
        if path.endswith(("var", "scale"))
        else rng.normal(0, 0.5, array.shape).astype(np.float32)
        for path, array in shapes.items()
    }


def effect(arrays, layer):
    """Kernel and offset that a convolution has together with its norm."""
    kernel, norm = arrays[f"{layer}.kernel"].astype(np.float64), f"{layer}.norm"
    if f"{norm}.var" not in arrays:
        return kernel, arrays[f"{layer}.bias"]
    factor = arrays[f"{norm}.scale"] / np.sqrt(arrays[f"{norm}.var"].astype(np.float64) + EPSILON)
    offset = arrays[f"{norm}.bias"] - arrays[f"{norm}.mean"] * factor
    return kernel * (factor[:, None] if "depthwise" in layer else factor), offset


def imported(model, path, **options):
    _, params, stats = abstract_detector(model, "float32")
    return read_weights(params | stats, model, path, ImportOptions(**options))


LAYERS = {
    "conv_0": ("Conv2D", "image"),
    "conv_1_depthwise": ("DepthwiseConv2dNative", "conv_0"),
    "conv_1_pointwise": ("Conv2D", "conv_1_depthwise"),
    "conv_2_depthwise": ("DepthwiseConv2dNative", "conv_1_pointwise"),
    "conv_2_pointwise": ("Conv2D", "conv_2_depthwise"),
    **{f"map_0.{name}": ("Conv2D", "conv_1_pointwise") for name in ("box", "class_")},
    **{f"map_1.{name}": ("Conv2D", "conv_2_pointwise") for name in ("box", "class_")},
}


def path_of(layer):
    return f"{'head' if layer.startswith('map') else 'backbone'}.{layer}"


def folded(arrays, *, scores=True):
    """Nodes and constants of the small detector; the names say nothing."""
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
    "pb": lambda folder, nodes, constants, *_: write_files(
        folder, {"frozen_inference_graph.pb": frozen(nodes, constants)}
    ),
}
# The greatest difference to the greatest weight of a kernel.
PRECISION = {"float32": 1e-6, "float16": 1e-3, "uint16": 1e-4, "uint8": 1e-2, "int8": 1e-2}


@pytest.mark.parametrize(
    ("kind", "stored"),
    [("tfjs", stored) for stored in ("float32", "float16", "uint8", "uint16")]
    + [("tflite", stored) for stored in ("float32", "float16", "uint8", "int8")]
    + [("pb", "float32")],
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
        # The converter has left the division in the graph.
        ([("Sub", 127.5), ("RealDiv", 127.5)], 1),
        ([("Mul", 2 / 255), ("Sub", 1.0)], 1),
        # Pixels are 0..1; they are normalised before they come here.
        ([("Sub", 0.5), ("RealDiv", 0.5)], 1),
        ([("Mul", 2.0)], 1),
    ],
)
@pytest.mark.parametrize(("kind", "conversion"), [("tfjs", None), ("pb", "Cast")])
def test_a_division_of_pixels_that_is_folded_into_the_first_kernel_is_undone(
    model, arrays, tmp_path, steps, factor, kind, conversion
):
    nodes, constants = folded(arrays)
    nodes.append(Node("Placeholder", value := "pixels", []))
    for number, (operation, constant) in enumerate(steps):
        constants[source := f"c{number}"] = np.array(constant)
        if conversion:
            nodes.append(Node(conversion, f"d{number}", [source]))
            source = f"d{number}"
        nodes.append(Node(operation, name := f"p{number}", [value, source]))
        value = name
    nodes.append(Node("Pad", "image", [value, "paddings"]))
    constants["op_0_k"] = constants["op_0_k"] / factor
    _, read = imported(model, WRITERS[kind](tmp_path, nodes, constants))
    kernel, _ = effect(arrays, "backbone.conv_0")
    np.testing.assert_allclose(read["backbone.conv_0.kernel"], kernel, rtol=1e-5)


def test_heads_of_other_classes_are_told_apart_from_boxes(arrays, tmp_path):
    path = WRITERS["tflite"](tmp_path, *folded(arrays))
    other = small_model("model.num_classes=30")
    with refused("m.tflite", "load_heads=false"):
        imported(other, path, for_training=True)
    report, read = imported(other, path, min_loaded=0.5)
    layers = {variable.path.rpartition(".")[0] for variable in report.mismatched}
    assert layers == {"head.map_0.class_", "head.map_1.class_"}
    assert np.array_equal(read["head.map_1.box.bias"], arrays["head.map_1.box.bias"])
    assert not report.departure


@pytest.mark.parametrize("scores", [True, False], ids=["by scores", "by names"])
def test_heads_of_the_same_shape_are_told_apart(tmp_path, scores):
    # Three classes and the background are as many channels as the coordinates of a box.
    model = small_model("model.num_classes=3")
    _, params, stats = abstract_detector(model, "float32")
    rng = np.random.default_rng(1)
    values = {path: rng.uniform(0.5, 1, array.shape) for path, array in (params | stats).items()}
    nodes, constants = folded(values, scores=scores)
    if not scores:
        names = {f"op_{number}": layer for number, layer in enumerate(LAYERS)}
        nodes = [
            node._replace(
                name=f"{names[node.name]}Predictor", inputs=[
                    f"{names[source]}Predictor" if source in names else source
                    for source in node.inputs
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
    report, read = imported(model, path, for_training=True)
    norms = {name.removesuffix(".mean") for name in read if name.endswith(".mean")}
    assert set(report.without_statistics) == norms
    assert not report.notes
    rest, _ = imported(model, path, for_training=True, skip=(r"conv_0\.norm",))
    assert any("freezes 1 batch norm that" in note for note in rest.notes) == frozen


def test_a_graph_of_another_model_is_refused_by_its_first_other_layer(arrays, tmp_path):
    path = WRITERS["tflite"](tmp_path, *folded(arrays))
    wide = small_model("model.backbone.depth_multiplier=0.5")
    with pytest.raises(UserError) as caught:
        imported(wide, path)
    assert "of another model: backbone.conv_0.kernel: [3, 3, 3, 8] in the graph" in caught.value.fix
    assert "[3, 3, 3, 16] wanted" in caught.value.fix
    with refused("m.tflite", "backbone.stem.kernel"):
        imported(resolve("ssd_resnet34").experiment.model, path)


NODES = [Node("Conv2D", "c", ["x", "k", "b"], ["BiasAdd"])]
CONSTANTS = {"k": np.ones((1, 1, 3, 2)), "b": np.arange(2.0)}
SHARDS = ("group1-shard1of2.bin", "group1-shard2of2.bin")


@pytest.fixture
def folder(tmp_path):
    write_files(tmp_path, tfjs(NODES, CONSTANTS, shards=2))
    return tmp_path


def change(folder, edit):
    """Edits the manifest of a folder's model."""
    path = folder / "model.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    return path


def set_weight(**fields):
    return lambda document: document["weightsManifest"][0]["weights"][0].update(fields)


def set_shard(name):
    return lambda document: document["weightsManifest"][0].update(paths=[name, SHARDS[1]])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (set_shard("../secret.bin"), r"its shard '\.\./secret\.bin' lies outside"),
        (set_shard("/etc/passwd"), "its shard '/etc/passwd' lies outside"),
        (set_shard("a/../../b"), "lies outside"),
        (set_shard("C:\\b.bin"), "lies outside"),
        (set_shard(""), "lies outside"),
        (set_shard(7), "damaged"),
        (
            lambda document: document.update(weightsManifest=[{"paths": "a" * 10_001}]),
            "more than 10,000 sh",
        ),
        (set_shard("missing.bin"), r"missing\.bin: No such file"),
        (set_weight(shape=[1, 1, 3, -2]), r"'k' has the shape \[1, 1, 3, -2\]"),
        (set_weight(shape=[1, 1, 3, 2.5]), "has the shape"),
        (set_weight(shape=[2**40, 2**40]), "its shards have 32 bytes, and 'k' ends at"),
        (set_weight(shape=[1] * 9), "has the shape"),
        (set_weight(shape="abc"), "has the shape"),
        (set_weight(dtype="string"), "'k' is of type 'string', which is not supported"),
        (set_weight(dtype=[]), "damaged"),
        (set_weight(name=None), "a weight is named None"),
        (set_weight(quantization={"dtype": "int4"}), "quantised to 'int4'"),
        (set_weight(quantization={"dtype": "uint8"}), "'scale' is missing"),
        (set_weight(quantization={"dtype": "uint8", "scale": 10**400, "min": 0}), "damaged"),
        (lambda document: document.pop("weightsManifest"), "'weightsManifest' is missing"),
        (lambda document: document.pop("modelTopology"), "'modelTopology' is missing"),
        (lambda document: document.update(modelTopology=[]), "damaged"),
        (lambda document: document.update(format="layers-model"), "of the format 'layers-model'"),
    ],
)
def test_a_hostile_manifest_is_refused(folder, edit, message):
    path = change(folder, edit)
    with pytest.raises(UserError, match=message):
        TfjsModel(path)


def test_a_shard_that_is_cut_off_before_or_after_it_is_opened_is_refused(folder):
    shard = folder / SHARDS[1]
    arrays = open_weights(folder).arrays
    np.testing.assert_array_equal(arrays["b"], [0, 1])
    shard.write_bytes(shard.read_bytes()[:-1])
    error = refusal(open_weights, folder)
    assert "its shards have 31 bytes, and 'b' ends at 32" in error.what
    assert "all its shards" in error.fix
    shard.write_bytes(b"")
    assert "the values of 'b' are cut off" in refusal(arrays.__getitem__, "b").what


def test_a_shard_that_links_elsewhere_is_refused(folder, tmp_path_factory):
    secret = tmp_path_factory.mktemp("other") / "secret"
    secret.write_bytes(bytes(100))
    (folder / SHARDS[0]).unlink()
    (folder / SHARDS[0]).symlink_to(secret)
    assert "leads out of" in refusal(open_weights, folder).what


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 100_000, '{"modelTopology": 3}'])
def test_other_json_is_refused(tmp_path, text):
    (tmp_path / "model.json").write_text(text)
    with refused("model.json"):
        open_weights(tmp_path / "model.json")


@pytest.mark.parametrize(
    "nodes",
    [
        [{"name": "c"}],
        [{"name": 7, "op": "Conv2D"}],
        [{"name": "c", "op": "Conv2D", "input": [7]}],
        [{"name": "c", "op": "Conv2D", "attr": {"fused_ops": {"list": {"s": ["?"]}}}}],
        [{"name": "c", "op": "Conv2D", "attr": {"epsilon": {"f": []}}}],
        [[]],
        7,
    ],
)
def test_damaged_nodes_are_refused_when_they_are_used(folder, nodes):
    path = change(folder, lambda document: document.update(modelTopology={"node": nodes}))
    model = TfjsModel(path)
    with refused("model.json"):
        _ = model.layers


def test_graphs_without_end_are_walked_once(tmp_path):
    nodes = [
        # Constants that are one another, sums of sums, and an operation on itself.
        Node("Identity", "p", ["q"]),
        Node("Identity", "q", ["p"]),
        Node("Conv2D", "c", ["c", "k"]),
        Node("Conv2D", "d", ["x", "p"]),
        Node("Add", "s", ["c", "t"]),
        Node("Add", "t", ["s", "b"]),
    ]
    (layer,) = TfjsModel(write_files(tmp_path, tfjs(nodes, CONSTANTS))).layers
    assert layer.before == 0


MODEL = tflite(NODES, CONSTANTS)


@pytest.mark.parametrize("length", [0, 4, 8, 50, len(MODEL) // 2, len(MODEL) - 200])
def test_truncated_models_are_refused(tmp_path, length):
    (tmp_path / "m.tflite").write_bytes(MODEL[:length])
    with refused("m.tflite", "TFLite"):
        _ = TfliteModel(tmp_path / "m.tflite").layers


def with_tensor(fields, *, operator=(), codes=(3,)):
    """A model with one tensor, with other fields, and 8 bytes of values."""
    tensor = {0: np.array([2], np.int32), 2: np.uint32(1), 3: "k", **fields}
    operations = [{1: np.array(operator, np.int32)}] if operator else []
    graph = {0: [tensor], 3: operations} if operations else {0: [tensor]}
    buffers = [{0: np.zeros(0, np.uint8)}, {0: np.zeros(8, np.uint8)}]
    builder = flatbuffers.Builder(256)
    table = {1: [{3: np.int32(code)} for code in codes], 2: [graph], 4: buffers}
    builder.Finish(_write(builder, table), b"TFL3")
    return bytes(builder.Output())


def quantised(factors, offsets):
    scales = {2: np.ones(factors, np.float32), 3: np.zeros(offsets, np.int64)}
    return with_tensor({0: np.array([8], np.int32), 1: np.int8(9), 4: scales})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (with_tensor({0: np.array([-2], np.int32)}), r"'k' of shape \[-2\] has 8 bytes"),
        (with_tensor({0: np.array([2**30] * 4, np.int32)}), "has 8 bytes"),
        (with_tensor({2: np.uint32(9)}), "a tensor has buffer 9 of 2"),
        (quantised(3, 3), "has 3 factors"),
        (quantised(1, 5), "1 factors and 5 zero points"),
        (with_tensor({}, operator=[3]), "an operation uses tensor 3 of 1"),
        (MODEL.replace(b"TFL3", b"TFL4"), "it does not begin as one"),
    ],
)
def test_hostile_models_are_refused(tmp_path, content, message):
    (tmp_path / "m.tflite").write_bytes(content)
    with pytest.raises(UserError, match=message):
        _ = TfliteModel(tmp_path / "m.tflite").layers


def test_a_single_integer_with_a_factor_is_read(tmp_path):
    parameters = {2: np.full(1, 2, np.float32), 3: np.full(1, 3, np.int64)}
    content = with_tensor({0: np.zeros(0, np.int32), 1: np.int8(4), 4: parameters})
    (tmp_path / "m.tflite").write_bytes(content)
    assert TfliteModel(tmp_path / "m.tflite")["k"] == -6


def test_types_that_cannot_be_weights_are_no_arrays(tmp_path):
    (tmp_path / "m.tflite").write_bytes(with_tensor({1: np.int8(5)}))
    assert not TfliteModel(tmp_path / "m.tflite").entries


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<I", 2**31),
        # A table before the file, one with fields before the file, and a list without end.
        struct.pack("<Ii", 4, 2**30),
        struct.pack("<Ii", 4, -(2**30)),
        struct.pack("<IiHHHHIi", 4, -4, 8, 8, 4, 0, 4, 2**30),
    ],
)
def test_offsets_out_of_a_flatbuffer_are_refused(data):
    with pytest.raises(ValueError, match=r"offset|list"):
        list(Table.root(data).tables(0, 10))


def joined(arrays):
    """The small detector with one convolution for boxes and classes, transposed and divided."""
    nodes, constants = folded(arrays, scores=False)
    by_name = {node.name: node for node in nodes}
    names = {layer: f"op_{number}" for number, layer in enumerate(LAYERS)}
    for number in (0, 1):
        box, class_ = (by_name.pop(names[f"map_{number}.{name}"]) for name in ("box", "class_"))
        pairs = [(class_.inputs[place], box.inputs[place]) for place in (1, 2)]
        for name, pair in zip(("k", "b"), pairs, strict=True):
            parts = [constants.pop(part) for part in pair]
            constants[f"{number}_{name}"] = np.concatenate(parts, axis=-1)
            sizes = np.array([part.shape[-1] for part in parts], np.int32)
        constants |= {f"{number}_order": np.zeros(4, np.int32), f"{number}_sizes": sizes}
        by_name |= {
            node.name: node
            for node in (
                Node("Conv2D", f"{number}_conv", [box.inputs[0], f"{number}_k"]),
                Node("Add", f"{number}_sum", [f"{number}_conv", f"{number}_b"]),
                Node("Transpose", f"{number}_turned", [f"{number}_sum", f"{number}_order"]),
                Node("SplitV", f"{number}_parts", [f"{number}_turned", f"{number}_sizes", "axis"]),
                Node("Sigmoid", f"{number}_scores", [f"{number}_parts"]),
                Node("Reshape", f"{number}_boxes", [f"{number}_parts:1", "shape"]),
            )
        }
    return [*by_name.values()], constants


def test_a_convolution_for_boxes_and_classes_is_divided(model, shapes, arrays, tmp_path):
    path = write_files(tmp_path, tfjs(*joined(arrays)))
    report, read = read_weights(shapes, model, path, ImportOptions())
    assert len(report.loaded) == len(shapes)
    for number in (0, 1):
        for name in ("box", "class_"):
            layer = path_of(f"map_{number}.{name}")
            for variable in ("kernel", "bias"):
                path = f"{layer}.{variable}"
                np.testing.assert_allclose(read[path], arrays[path], rtol=1e-6)


@pytest.mark.parametrize("sizes", [[1, 1], [-1, 10**6], [], [[2, 3]]])
def test_a_split_of_other_channels_divides_nothing(model, arrays, tmp_path, sizes):
    nodes, constants = joined(arrays)
    constants["0_sizes"] = np.array(sizes, np.int32)
    layers = TfjsModel(write_files(tmp_path, tfjs(nodes, constants))).layers
    assert [layer.channels for layer in layers if layer.name == "0_conv"] == [None]


def test_nanodet_has_blue_and_the_left_edge_first(model, shapes, arrays, tmp_path):
    coded = small_model(
        "model.box_coder={kind: distances}", "model.loss={kind: quality, distribution_weight: 0}",
        "model.background_class=false", "model.matcher={kind: atss}",
    )  # fmt: skip
    files = tfjs(*folded(arrays))
    document = json.loads(files["model.json"])
    document["generatedBy"] = nanodet.GENERATOR
    path = write_files(tmp_path, files | {"model.json": json.dumps(document).encode()})
    read = imported(coded, path, min_loaded=0)[1]
    kernel, _ = effect(arrays, "backbone.conv_0")
    np.testing.assert_allclose(effect(read, "backbone.conv_0")[0], kernel[:, :, ::-1], rtol=1e-5)
    # Left, top, right and bottom for each anchor become top, left, bottom and right.
    theirs = arrays["head.map_0.box.bias"].reshape(-1, 4)
    np.testing.assert_allclose(
        read["head.map_0.box.bias"].reshape(-1, 4), theirs[:, [1, 0, 3, 2]], rtol=1e-6
    )


def test_layers_that_differ_in_their_depth_alone_are_paired_in_its_order():
    kernel, shape = "t.kernel", (3, 3, 4, 4)
    ours = [ModelLayer(kernel, shape, shape, 0, None, None, depth) for depth in (9, 4)]
    theirs = [Layer("conv", kernel, shape, 0, False, (), depth=depth) for depth in (2, 7)]
    assert match_layers(ours, theirs) == {1: 0, 0: 1}
    # As far from the input, they cannot be told apart.
    assert match_layers(ours, [layer._replace(depth=2) for layer in theirs]) == {}
