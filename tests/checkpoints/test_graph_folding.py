"""Parameters of a layer, of the kernels and constants of its uses in a graph."""

import numpy as np
import pytest

from stillbox.checkpoints.graphs.folding import Use, parameters_of
from stillbox.checkpoints.graphs.graph import Layer, Step
from stillbox.checkpoints.graphs.traced import ModelLayer, NormUse
from stillbox.experiment import schema

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


def test_different_kernels_where_the_model_has_one_are_refused():
    rng = np.random.default_rng(3)
    uses, constants = tower([(rng.normal(size=(1, 1, 6, 4)), np.zeros(4)) for _ in range(2)])
    with pytest.raises(ValueError, match="different kernels"):
        parameters_of(uses, constants)


def test_an_offset_that_the_layer_cannot_add_is_refused():
    kernel = np.ones((3, 3, 4))
    ours = ModelLayer("conv.depthwise_kernel", (3, 3, 4, 1), kernel.shape, 0, None, None)
    theirs = Layer("c", "k", kernel.shape, 0, False, (Step("add", ("b",)),))
    with pytest.raises(ValueError, match="an offset is added"):
        parameters_of([Use(ours, theirs)], Constants(k=kernel, b=np.ones(4)))


def test_a_layer_whose_offset_is_not_recognised_is_refused():
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
    for name, own in (("scale", "g"), ("bias", "b"), ("mean", "m")):
        np.testing.assert_allclose(read[f"norm.{name}"], constants[own], rtol=1e-6)
    # What the graph adds to the variance differs from what the model adds.
    np.testing.assert_allclose(read["norm.var"], constants["v"] + 0.01 - EPSILON, rtol=1e-6)
