"""Parameters of a layer, of the kernels and constants of its uses in a graph."""

import numpy as np
import pytest

from stillbox.checkpoints.graphs.folding import Use, parameters_of
from stillbox.checkpoints.graphs.graph import Layer, Step
from stillbox.checkpoints.graphs.tfjs import TfjsModel
from stillbox.checkpoints.graphs.traced import ModelLayer, NormUse
from stillbox.experiment import schema
from tools.fuzz.graphs import Node, tfjs, write_files

EPSILON = 0.001


class Constants(dict):
    """Constants of a graph, by name."""

    def read_kernel(self, name):
        return self[name]

    read_constant = read_kernel


def tower(copies, *, scale=True):
    """The uses of a tower's kernel on several maps, and the constants of their graph."""
    config = schema.BatchNorm(scale=scale, epsilon=EPSILON)
    constants, uses = Constants(), []
    for number, (kernel, offset) in enumerate(copies):
        constants |= {f"k{number}": kernel, f"b{number}": offset}
        norm = NormUse(f"norm_{number}", config)
        ours = ModelLayer("conv.kernel", kernel.shape, kernel.shape, 0, None, norm)
        steps = (Step("add", (f"b{number}",)),)
        theirs = Layer(f"c{number}", f"k{number}", kernel.shape, 0, False, steps)
        uses.append(Use(ours, theirs))
    return uses, constants


@pytest.mark.parametrize("scale", [True, False])
def test_copies_of_a_kernel_are_one_kernel_and_a_factor_for_each_map(scale):
    rng = np.random.default_rng(2)
    kernel = rng.normal(size=(1, 1, 6, 4)).astype(np.float32)
    factors = rng.uniform(0.5, 2, (3, 4)).astype(np.float32)
    if scale:
        factors[1, 2] = 0  # a channel that one map does not use
        factors[2, 0] = -1.5
    offsets = rng.normal(size=(3, 4)).astype(np.float32)
    uses, constants = tower(
        [(kernel * factor, offset) for factor, offset in zip(factors, offsets, strict=True)],
        scale=scale,
    )
    read = parameters_of(uses, constants)
    for number, (factor, offset) in enumerate(zip(factors, offsets, strict=True)):
        norm = f"norm_{number}"
        gamma = read[f"{norm}.scale"] if scale else 1
        effective = gamma / np.sqrt(read[f"{norm}.var"] + EPSILON)
        np.testing.assert_allclose(
            read["conv.kernel"] * effective, kernel * factor, rtol=1e-5, atol=1e-6
        )
        np.testing.assert_array_equal(read[f"{norm}.bias"], offset)
        assert not read[f"{norm}.mean"].any()


def test_layers_that_the_model_cannot_have_are_refused():
    rng = np.random.default_rng(3)
    uses, constants = tower([(rng.normal(size=(1, 1, 6, 4)), np.zeros(4)) for _ in range(2)])
    with pytest.raises(ValueError, match="different kernels"):
        parameters_of(uses, constants)
    kernel = np.ones((3, 3, 4))
    ours = ModelLayer("conv.depthwise_kernel", (3, 3, 4, 1), kernel.shape, 0, None, None)
    theirs = Layer("c", "k", kernel.shape, 0, False, (Step("add", ("b",)),))
    with pytest.raises(ValueError, match="an offset is added"):
        parameters_of([Use(ours, theirs)], Constants(k=kernel, b=np.ones(4)))
    uses, constants = tower([(np.ones((1, 1, 2, 3)), np.ones(3))])
    bare = Use(uses[0].model, uses[0].graph._replace(steps=()))
    with pytest.raises(ValueError, match="no constants follow it"):
        parameters_of([bare], constants)


def test_a_norm_that_was_kept_keeps_its_statistics():
    kernel, rng = np.ones((1, 1, 2, 3)), np.random.default_rng(4)
    constants = Constants(k=kernel, **{name: rng.uniform(1, 2, 3) for name in "gbmv"})
    norm = NormUse("norm", schema.BatchNorm(scale=True, epsilon=EPSILON))
    ours = ModelLayer("conv.kernel", kernel.shape, kernel.shape, 0, None, norm)
    steps = (Step("norm", tuple("gbmv"), 0.01),)
    read = parameters_of([Use(ours, Layer("c", "k", kernel.shape, 0, False, steps))], constants)
    for name, key in (("scale", "g"), ("bias", "b"), ("mean", "m")):
        np.testing.assert_allclose(read[f"norm.{name}"], constants[key], rtol=1e-6)
    # What the graph adds to the variance differs from what the model adds.
    np.testing.assert_allclose(read["norm.var"], constants["v"] + 0.01 - EPSILON, rtol=1e-6)


def layers_of(tmp_path, nodes, constants):
    return TfjsModel(write_files(tmp_path, tfjs(nodes, constants))).layers


ONES = {
    "one": np.ones(()),
    "k": np.ones((1, 1, 3, 2)),
    "b": np.ones(2),
    "m": np.full(2, 3.0),
    "v": np.ones(2),
}


CONV = Node("Conv2D", "c", ["x", "k"])
OFFSET = Node("Add", "e", ["c", "b"])


@pytest.mark.parametrize(
    ("nodes", "kinds"),
    [
        ([CONV], []),
        ([Node("_FusedConv2D", "c", ["x", "k", "b"], ["BiasAdd"])], ["add"]),
        # Factor and offset of a norm that was not folded.
        (
            [CONV, Node("Mul", "d", ["c", "m"]), Node("Sub", "e", ["d", "b"])],
            ["multiply", "subtract"],
        ),
        # A conversion lies between.
        ([CONV, Node("Identity", "d", ["c"]), Node("BiasAdd", "e", ["d", "b"])], ["add"]),
        # What is subtracted from is the constant.
        ([CONV, Node("Sub", "e", ["b", "c"])], []),
        # A norm, by itself and as part of the convolution.
        ([CONV, Node("FusedBatchNormV3", "n", ["c", "m", "b", "b", "v"], (), 0.01)], ["norm"]),
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
                CONV,
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
                CONV,
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
        ([CONV, Node("Add", "d", ["c", "b"]), Node("Add", "e", ["d", "one"])], ["add"]),
        # An activation, or a second use of the result, comes before the addition.
        ([Node("_FusedConv2D", "c", ["x", "k", "b"], ["BiasAdd", "Relu6"]), OFFSET], ["add"]),
        ([CONV, OFFSET, Node("Relu", "r", ["c"])], []),
        # Only the shape is used.
        ([CONV, OFFSET, Node("Shape", "r", ["c"])], ["add"]),
    ],
)
def test_what_follows_a_convolution_with_constants_alone_is_its_own(tmp_path, nodes, kinds):
    layer = {layer.name: layer for layer in layers_of(tmp_path, nodes, ONES)}["c"]
    assert [step.kind for step in layer.steps] == kinds
    assert not layer.unclear


def test_what_follows_a_convolution_and_is_no_constant_is_noticed(tmp_path):
    (layer,) = layers_of(tmp_path, [CONV, Node("Mul", "d", ["c", "input"])], ONES)
    assert layer.unclear


def test_a_constant_behind_more_than_eight_operations_is_not_followed(tmp_path):
    nodes = [Node("Add", "s0", ["b", "b"])]
    nodes += [Node("Add", f"s{number}", [f"s{number - 1}"] * 2) for number in range(1, 20)]
    for number in range(20):
        nodes.append(Node("Conv2D", f"c{number}", ["x", "k"]))
        nodes.append(Node("Add", f"e{number}", [f"c{number}", f"s{number}"]))
    layers = layers_of(tmp_path, nodes, ONES)
    steps = {int(layer.name[1:]): len(layer.steps) for layer in layers}
    assert steps == {number: int(number < 8) for number in range(20)}


def test_an_offset_behind_the_sum_of_two_results_is_of_one_of_them(tmp_path):
    nodes = [CONV, CONV._replace(name="d"), Node("Add", "s", ["c", "d"])]
    layers = layers_of(tmp_path, [*nodes, Node("Add", "e", ["s", "b"])], ONES)
    assert sorted(len(layer.steps) for layer in layers) == [0, 1]


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
