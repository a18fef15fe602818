"""Damaged and hostile graphs of TensorFlow.js and TFLite end in one sentence."""

import json
import struct

import flatbuffers
import numpy as np
import pytest

from stillbox.checkpoints.graphs.tfjs import TfjsModel
from stillbox.checkpoints.graphs.tflite import Table, TfliteModel
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.exporting.tflite.metadata import _write
from tests.helpers import refusal
from tools.fuzz.graphs import Node, tfjs, tflite, write_files

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


def test_a_truncated_shard_is_refused(folder):
    shard = folder / SHARDS[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    error = refusal(open_weights, folder)
    assert "its shards have 31 bytes, and 'b' ends at 32" in error.what
    assert "all its shards" in error.fix


def test_a_shard_that_is_cut_off_later_is_refused(folder):
    arrays = open_weights(folder).arrays
    np.testing.assert_array_equal(arrays["b"], [0, 1])
    (folder / SHARDS[1]).write_bytes(b"")
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
    with pytest.raises(UserError, match="damaged or no graph model"):
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
    with pytest.raises(UserError, match="damaged or no graph model"):
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
    with pytest.raises(UserError, match="damaged or no TFLite model"):
        _ = TfliteModel(tmp_path / "m.tflite").layers


def with_tensor(fields, *, operator=(), codes=(3,)):
    """A model with one tensor, whose fields are replaced, and 8 bytes of values."""
    tensor = {0: np.array([2], np.int32), 2: np.uint32(1), 3: "k", **fields}
    operations = [{1: np.array(operator, np.int32)}] if operator else []
    graph = {0: [tensor], 3: operations} if operations else {0: [tensor]}
    buffers = [{0: np.zeros(0, np.uint8)}, {0: np.zeros(8, np.uint8)}]
    builder = flatbuffers.Builder(256)
    table = {1: [{3: np.int32(code)} for code in codes], 2: [graph], 4: buffers}
    builder.Finish(_write(builder, table), b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (with_tensor({0: np.array([-2], np.int32)}), r"'k' of shape \[-2\] has 8 bytes"),
        (with_tensor({0: np.array([2**30] * 4, np.int32)}), "has 8 bytes"),
        (with_tensor({2: np.uint32(9)}), "a tensor has buffer 9 of 2"),
        (
            with_tensor(
                {
                    0: np.array([8], np.int32),
                    1: np.int8(9),
                    4: {2: np.ones(3, np.float32), 3: np.zeros(3, np.int64)},
                }
            ),
            "has 3 factors",
        ),
        (
            with_tensor(
                {
                    0: np.array([8], np.int32),
                    1: np.int8(9),
                    4: {2: np.ones(1, np.float32), 3: np.zeros(5, np.int64)},
                }
            ),
            "1 factors and 5 zero points",
        ),
        (with_tensor({}, operator=[3]), "an operation uses tensor 3 of 1"),
        (MODEL.replace(b"TFL3", b"TFL4"), "it does not begin as one"),
    ],
)
def test_hostile_models_are_refused(tmp_path, content, message):
    (tmp_path / "m.tflite").write_bytes(content)
    with pytest.raises(UserError, match=message):
        _ = TfliteModel(tmp_path / "m.tflite").layers


def test_types_that_cannot_be_weights_are_no_arrays(tmp_path):
    (tmp_path / "m.tflite").write_bytes(with_tensor({1: np.int8(5)}))
    assert not TfliteModel(tmp_path / "m.tflite").entries


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<I", 2**31),
        # A table before the file, one whose fields are before the file, and a list without end.
        struct.pack("<Ii", 4, 2**30),
        struct.pack("<Ii", 4, -(2**30)),
        struct.pack("<IiHHHHIi", 4, -4, 8, 8, 4, 0, 4, 2**30),
    ],
)
def test_offsets_out_of_a_flatbuffer_are_refused(data):
    with pytest.raises(ValueError, match=r"offset|list"):
        list(Table.root(data).tables(0, 10))
