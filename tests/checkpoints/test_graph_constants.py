"""Constants of frozen graphs and SavedModels, in messages that are written here by hand."""

import struct

import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from tests.checkpoints.tf1_writer import DTYPES, field

FLOAT, HALF, BFLOAT16, INT32 = (
    DTYPES[np.dtype(kind)] for kind in (np.float32, np.float16, jnp.bfloat16, np.int32)
)
KERNEL = np.arange(6, dtype=np.float32).reshape(3, 2)


def tensor(dtype, shape, values):
    axes = b"".join(field(2, field(1, length)) for length in shape)
    return field(1, dtype) + field(2, axes) + values


def content(array):
    return tensor(DTYPES[array.dtype], array.shape, field(4, array.tobytes()))


def constant(name, value, op=b"Const"):
    """A node; the type is another of its attributes."""
    kind = field(1, b"dtype") + field(2, field(6, 1))
    attributes = field(5, kind) + field(5, field(1, b"value") + field(2, field(8, value)))
    return field(1, field(1, name.encode()) + field(2, op) + field(3, b"^input") + attributes)


def read(folder, graph, name="frozen_inference_graph.pb"):
    (folder / name).write_bytes(graph)
    return open_weights(folder / name).arrays


def test_arrays_of_floating_point_are_read_by_the_names_of_their_nodes(tmp_path):
    half = np.float16([0.5, -2, 7])
    graph = (
        constant("Conv/weights", content(KERNEL))
        + constant("Conv/weights/read", content(KERNEL), b"Identity")
        + constant("half", content(half))
        + constant("double", content(KERNEL.astype(np.float64)))
        + constant("shape", content(np.int32([1, 2])))
        + constant("scalar", content(np.float32(3)))
        + field(4, field(1, 27))
    )
    weights = read(tmp_path, graph)
    assert list(weights) == ["Conv/weights", "half", "double"]
    np.testing.assert_array_equal(weights["Conv/weights"], KERNEL)
    np.testing.assert_array_equal(weights["half"], half)
    assert weights["double"].dtype == np.float64
    assert open_weights(tmp_path).path == str(tmp_path / "frozen_inference_graph.pb")
    assert open_weights(tmp_path).library == "tensorflow"


def test_a_saved_model_without_variables_has_constants(tmp_path):
    graph = constant("Conv/weights", content(KERNEL))
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "variables").mkdir()
    model = field(1, 1) + field(2, field(1, b"") + field(2, graph))
    weights = read(tmp_path / "saved_model", model, "saved_model.pb")
    np.testing.assert_array_equal(weights["Conv/weights"], KERNEL)
    assert open_weights(tmp_path).path == str(tmp_path / "saved_model" / "saved_model.pb")


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (FLOAT, field(5, struct.pack("<4f", 1, 2, 3, 4)), [1, 2, 3, 4]),
        (FLOAT, b"\x2d" + struct.pack("<f", 1) + b"\x2d" + struct.pack("<f", 2), [1, 2, 2, 2]),
        (FLOAT, field(5, struct.pack("<f", 9)), [9, 9, 9, 9]),
        (FLOAT, b"", [0, 0, 0, 0]),
        # 1.0 and 2.0 as bits.
        (HALF, field(13, b"\x80\x78\x80\x80\x01"), [1, 2, 2, 2]),
        (BFLOAT16, field(13, 0x3F80), [1, 1, 1, 1]),
    ],
)
def test_the_last_value_stands_for_those_that_follow(tmp_path, dtype, values, expected):
    filler = constant("filler", content(np.zeros(9, np.float32)))
    weights = read(tmp_path, filler + constant("bias", tensor(dtype, (4,), values)))
    np.testing.assert_array_equal(weights["bias"].astype(np.float32), expected)


@pytest.mark.parametrize(
    "value",
    [
        tensor(FLOAT, (3,), field(4, bytes(8))),
        tensor(FLOAT, (3,), field(4, bytes(7))),
        tensor(FLOAT, (3,), field(4, b"")),
        tensor(FLOAT, (1,), field(5, bytes(8))),
        tensor(HALF, (3,), field(13, b"\x80")),
    ],
)
def test_values_that_are_not_as_many_as_the_shape_says_are_refused(tmp_path, value):
    weights = read(tmp_path, constant("bias", value))
    with pytest.raises(UserError, match=r"graph\.pb: the values of the constant 'bias' are not"):
        _ = weights["bias"]


def test_what_claims_more_than_it_can_hold_is_refused(tmp_path):
    for shape in ((2**60, 2**60), (100_000,)):
        with pytest.raises(UserError, match="unpacks to more than 100 times of its size"):
            read(tmp_path, constant("bias", tensor(FLOAT, shape, field(5, bytes(4)))))


@pytest.mark.parametrize("graph", [b"something", b"\x0a\xff\x01", field(1, field(1, b"\xff"))[:-1]])
def test_what_is_no_graph_is_refused(tmp_path, graph):
    with pytest.raises(UserError, match="the file is damaged or no graph of TensorFlow"):
        read(tmp_path, graph)
