"""The parameters of a layer, of the kernel and the constants that a graph has in their place.

Converters fold a batch norm into the kernel before it and an offset. A folded kernel with offset b
is followed by a batch norm with gamma 1, beta b, mean 0 and variance 1 - epsilon; a factor that was
kept is its gamma. Where feature maps share a kernel but not the norms, each map has a copy of the
kernel, and the copies differ by a factor for each channel, which is the map's gamma.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.checkpoints.array_files import ArrayEntry
from stillbox.checkpoints.graphs.graph import GraphArrays, Layer, Step, part_of
from stillbox.checkpoints.graphs.traced import ModelLayer, NormUse
from stillbox.experiment import schema

Reals = NDArray[np.float64]
# The share of the norm of a kernel's copies that a factor for each channel does not explain. It is
# 0.0000001 of float32 and about 0.01 of integers of 8 bits.
_MOST_RESIDUAL = 0.2
# Tolerance of the mean of pixels, which is rounded to float32 several times.
_SAME_MEAN = 1e-4
# Steps of the fit of a kernel to its copies; of exact copies the first is exact.
_FIT_STEPS = 3


class Use(NamedTuple):
    """One use of a kernel, in the model and in the graph."""

    model: ModelLayer
    graph: Layer

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """The shape that the graph has for the model's kernel."""
        same = self.model.shape == self.graph.shape
        return self.model.kernel_shape if same else self.graph.shape


class _Affine(NamedTuple):
    """Factor and offset of each channel of a convolution's result."""

    factor: Reals
    offset: Reals


def parameters_of(
    uses: Sequence[Use],
    graph: GraphArrays[ArrayEntry],
    normalization: schema.PixelNormalization | None = None,
) -> dict[str, np.ndarray]:
    """Returns a kernel with its bias and the batch norms that follow its uses, float32 by path.

    `uses` are all uses of the kernel, `normalization` is the model's.

    Raises:
        ValueError: the graph computes what the layer cannot.
    """
    for use in uses:
        # An offset of zeros is not trained: what follows is something else than a bias or a norm.
        if not use.graph.steps and (use.model.norm or use.model.bias):
            raise ValueError("no constants follow it where the model has a bias or a norm")
        if use.graph.unclear:
            raise ValueError("what follows it is not computed of constants")
    columns = [_columns(use.graph, graph, normalization) for use in uses]
    same = all(np.array_equal(columns[0], other) for other in columns[1:])
    norms = [norm for use in uses if (norm := _kept_norm(use, graph)) is not None]
    if same and len(norms) == len(uses):
        kernel, arrays = columns[0], {path: array for norm in norms for path, array in norm.items()}
    else:
        affines = [_affine(use.graph, graph) for use in uses]
        kernel, arrays = _folded(uses, columns, affines, same=same)
    arrays[uses[0].model.path] = kernel.reshape(uses[0].kernel_shape)
    return {path: array.astype(np.float32) for path, array in arrays.items()}


def _columns(
    layer: Layer, graph: GraphArrays[ArrayEntry], normalization: schema.PixelNormalization | None
) -> Reals:
    """Returns a kernel with a column for each channel of the result."""
    kernel = part_of(graph.read_kernel(layer.kernel), layer.channels).astype(np.float64)
    if layer.pixels and normalization is not None and len(layer.shape) == 4:
        kernel = kernel * _pixel_factors(layer, graph, normalization)[:, None]
    return kernel.reshape(-1, layer.shape[-1])


def _pixel_factors(
    layer: Layer, graph: GraphArrays[ArrayEntry], normalization: schema.PixelNormalization
) -> Reals:
    """Returns what a first kernel has to be multiplied by, for each channel of its input.

    Converters fold the division of pixels by a constant into the first kernel. A graph that
    subtracts the model's mean, and so takes pixels as the model does, shows by how much.
    """
    ones = np.ones(layer.shape[2])
    if any(
        graph.read_constant(name).size not in (1, len(ones))
        for step in layer.pixels
        for name in step.constants
    ):
        return ones
    factor, offset = _apply(layer.pixels, graph, ones, 0 * ones)
    mean, std = np.array(normalization.mean), np.array(normalization.std)
    same = offset.any() and np.allclose(-offset, factor * mean, rtol=_SAME_MEAN)
    return factor * std if same else ones


def _kept_norm(use: Use, graph: GraphArrays[ArrayEntry]) -> dict[str, Reals] | None:
    """Returns the variables of a norm that the graph has too, if the model's has all of them."""
    norm, steps = use.model.norm, use.graph.steps
    if norm is None or [step.kind for step in steps] != ["norm"]:
        return None
    if not (norm.config.scale and norm.config.center) or use.model.bias is not None:
        return None
    gamma, beta, mean, var = _constants(steps[0], graph)
    # What is added to the variance is the model's.
    variables = {"scale": gamma, "bias": beta, "mean": mean}
    variables["var"] = var + (steps[0].epsilon - norm.config.epsilon)
    return {f"{norm.path}.{name}": array for name, array in variables.items()}


def _affine(layer: Layer, graph: GraphArrays[ArrayEntry]) -> _Affine:
    """Returns what the steps after a convolution do together."""
    channels = layer.shape[-1]
    return _apply(layer.steps, graph, np.ones(channels), np.zeros(channels))


def _apply(
    steps: Sequence[Step], graph: GraphArrays[ArrayEntry], factor: Reals, offset: Reals
) -> _Affine:
    """Returns a factor and an offset with steps behind them."""
    for step in steps:
        first, *others = _constants(step, graph)
        match step.kind:
            case "add":
                offset = offset + first
            case "subtract":
                offset = offset - first
            case "multiply":
                factor, offset = factor * first, offset * first
            case "divide":
                factor, offset = factor / first, offset / first
            case _:
                beta, mean, var = others
                scale = first / np.sqrt(var + step.epsilon)
                factor, offset = factor * scale, (offset - mean) * scale + beta
    return _Affine(factor, offset)


def _constants(step: Step, graph: GraphArrays[ArrayEntry]) -> list[Reals]:
    return [part_of(graph.read_constant(name), step.channels) for name in step.constants]


def _folded(
    uses: Sequence[Use], columns: Sequence[Reals], affines: Sequence[_Affine], *, same: bool
) -> tuple[Reals, dict[str, Reals]]:
    """Returns the kernel, and the bias and norms of the layer by path."""
    norms = [use.model.norm for use in uses]
    factors = [affine.factor for affine in affines]
    if same and all(norm is not None and norm.config.scale for norm in norms):
        kernel = columns[0]
    else:
        copies = [column * factor for column, factor in zip(columns, factors, strict=True)]
        kernel, factors = _common_kernel(copies)
    arrays: dict[str, Reals] = {}
    for use, factor, affine in zip(uses, factors, affines, strict=True):
        arrays |= _offsets(use.model, factor, affine.offset)
    return kernel, arrays


def _common_kernel(copies: Sequence[Reals]) -> tuple[Reals, list[Reals]]:
    """Returns a kernel, and for each of its copies the factors of its channels."""
    if all(np.array_equal(copies[0], other) for other in copies[1:]):
        return copies[0], [np.ones(copies[0].shape[1]) for _ in copies]
    stack = np.stack(copies)
    # The largest copy of each channel is a first estimate.
    largest = np.argmax(np.square(stack).sum(axis=1), axis=0)
    kernel = stack[largest, :, np.arange(stack.shape[2])].T
    for _ in range(_FIT_STEPS):
        factors = (stack * kernel).sum(axis=1) / _not_zero(np.square(kernel).sum(axis=0))
        weight = _not_zero(np.square(factors).sum(axis=0))
        kernel = (stack * factors[:, None]).sum(axis=0) / weight
    rest = np.linalg.norm(stack - kernel * factors[:, None])
    if rest > _MOST_RESIDUAL * np.linalg.norm(stack):
        raise ValueError("feature maps have different kernels where the model has one")
    return kernel, list(factors)


def _not_zero(array: Reals) -> Reals:
    return np.where(array == 0, 1.0, array)


def _offsets(layer: ModelLayer, factor: Reals, offset: Reals) -> dict[str, Reals]:
    """Returns bias and norm of a layer that multiplies by a factor and adds an offset."""
    arrays: dict[str, Reals] = {}
    if layer.norm is not None:
        arrays |= _folded_norm(layer.norm, factor, offset)
        offset = np.zeros_like(offset)
    elif not np.allclose(factor, 1, rtol=_MOST_RESIDUAL, atol=0):
        raise ValueError("feature maps have other factors where the model has none")
    if layer.bias is not None:
        arrays[layer.bias] = offset
    elif offset.any():
        raise ValueError("an offset is added where the model has none")
    return arrays


def _folded_norm(norm: NormUse, factor: Reals, offset: Reals) -> dict[str, Reals]:
    """Returns the variables of a norm that is known by its effect alone."""
    config, arrays = norm.config, dict[str, Reals]()
    ones = np.ones_like(factor)
    if config.scale:
        arrays["scale"] = factor
        arrays["var"] = ones - config.epsilon
    else:
        # Without gamma the variance alone can multiply.
        arrays["var"] = 1 / np.square(_not_zero(factor)) - config.epsilon
    if config.center:
        arrays["bias"] = offset
        arrays["mean"] = 0 * ones
    else:
        arrays["mean"] = -offset / _not_zero(factor)
    return {f"{norm.path}.{name}": array for name, array in arrays.items()}
