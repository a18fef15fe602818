"""The convolutions of a graph: what follows each with constants alone, and what leads to it."""

import numpy as np
import pytest

from stillbox.checkpoints.graphs.tfjs import TfjsModel
from tools.fuzz.graphs import Node, tfjs, write_files


def layers_of(tmp_path, nodes, constants):
    return TfjsModel(write_files(tmp_path, tfjs(nodes, constants))).layers


ONES = {
    "one": np.ones(()),
    "k": np.ones((1, 1, 3, 2)),
    "b": np.ones(2),
    "m": np.full(2, 3.0),
    "v": np.ones(2),
}


@pytest.mark.parametrize(
    ("nodes", "kinds"),
    [
        ([Node("Conv2D", "c", ["x", "k"])], []),
        ([Node("_FusedConv2D", "c", ["x", "k", "b"], ["BiasAdd"])], ["add"]),
        # Factor and offset of a norm that was not folded.
        (
            [
                Node("Conv2D", "c", ["x", "k"]),
                Node("Mul", "d", ["c", "m"]),
                Node("Sub", "e", ["d", "b"]),
            ],
            ["multiply", "subtract"],
        ),
        # A conversion lies between.
        (
            [
                Node("Conv2D", "c", ["x", "k"]),
                Node("Identity", "d", ["c"]),
                Node("BiasAdd", "e", ["d", "b"]),
            ],
            ["add"],
        ),
        # What is subtracted from is the constant.
        ([Node("Conv2D", "c", ["x", "k"]), Node("Sub", "e", ["b", "c"])], []),
        # A norm, by itself and as part of the convolution.
        (
            [
                Node("Conv2D", "c", ["x", "k"]),
                Node("FusedBatchNormV3", "n", ["c", "m", "b", "b", "v"], (), 0.01),
            ],
            ["norm"],
        ),
        (
            [
                Node(
                    "_FusedConv2D",
                    "c",
                    ["x", "k", "m", "b", "b", "v"],
                    ["FusedBatchNorm", "Relu"],
                    0.01,
                )
            ],
            ["norm"],
        ),
        # Grappler adds the offset to the sum with another result.
        (
            [
                Node("Conv2D", "c", ["x", "k"]),
                Node("AddN", "s", ["c", "other"]),
                Node("Relu", "other", ["before"]),
                Node("Conv2D", "before", ["x", "k"], ["Relu"]),
                Node("Add", "e", ["b", "s"]),
            ],
            ["add"],
        ),
        # A norm that is computed of its variables; its factors are equal.
        (
            [
                Node("Conv2D", "c", ["x", "k"]),
                Node("Add", "p", ["v", "one"]),
                Node("Rsqrt", "q", ["p"]),
                Node("Mul", "f", ["q", "m"]),
                Node("Mul", "d", ["c", "f"]),
                Node("Mul", "g", ["d", "one"]),
                Node("Add", "e", ["g", "one"]),
            ],
            ["multiply", "multiply", "add"],
        ),
        # A hard sigmoid begins by an addition.
        (
            [
                Node("Conv2D", "c", ["x", "k"]),
                Node("Add", "d", ["c", "b"]),
                Node("Add", "e", ["d", "one"]),
            ],
            ["add"],
        ),
        # An activation, or a second use of the result, comes before the addition.
        (
            [
                Node("_FusedConv2D", "c", ["x", "k", "b"], ["BiasAdd", "Relu6"]),
                Node("Add", "e", ["c", "b"]),
            ],
            ["add"],
        ),
        (
            [
                Node("Conv2D", "c", ["x", "k"]),
                Node("Add", "e", ["c", "b"]),
                Node("Relu", "r", ["c"]),
            ],
            [],
        ),
        # Only the shape is used.
        (
            [
                Node("Conv2D", "c", ["x", "k"]),
                Node("Add", "e", ["c", "b"]),
                Node("Shape", "r", ["c"]),
            ],
            ["add"],
        ),
    ],
)
def test_what_follows_a_convolution_with_constants_alone_is_its_own(tmp_path, nodes, kinds):
    layer = {own.name: own for own in layers_of(tmp_path, nodes, ONES)}["c"]
    assert [step.kind for step in layer.steps] == kinds
    assert not layer.unclear


def test_what_follows_a_convolution_and_is_no_constant_is_noticed(tmp_path):
    nodes = [Node("Conv2D", "c", ["x", "k"]), Node("Mul", "d", ["c", "input"])]
    (layer,) = layers_of(tmp_path, nodes, ONES)
    assert layer.unclear


def test_an_offset_behind_the_sum_of_two_results_is_of_one_of_them(tmp_path):
    nodes = [
        Node("Conv2D", "c", ["x", "k"]),
        Node("Conv2D", "d", ["x", "k"]),
        Node("Add", "s", ["c", "d"]),
        Node("Add", "e", ["s", "b"]),
    ]
    assert sorted(len(layer.steps) for layer in layers_of(tmp_path, nodes, ONES)) == [0, 1]


def test_results_are_followed_through_loops_and_not_through_shapes(tmp_path):
    square = {"k": np.ones((1, 1, 3, 3))}
    nodes = [
        Node("Conv2D", "a", ["x", "k"]),
        Node("Merge", "loop", ["a", "back"]),
        Node("NextIteration", "back", ["loop"]),
        Node("Shape", "size", ["b"]),
        Node("Conv2D", "b", ["loop", "k"]),
        Node("ResizeBilinear", "r", ["a", "size"]),
        Node("Conv2D", "c", ["r", "k"]),
    ]
    layers = layers_of(tmp_path, nodes, square)
    names = [layer.name for layer in layers]
    before = {
        layer.name: {name for bit, name in enumerate(names) if layer.before >> bit & 1}
        for layer in layers
    }
    assert before == {"a": set(), "b": {"a"}, "c": {"a"}}
