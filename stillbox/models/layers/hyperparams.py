"""Initialisers, penalties and activation functions of layers, by the schema's names.

NumPy draws the kernels of a detector fast and equally on every platform; JAX would first compile a
program for each shape. An initialiser is called with `(config, shape, rng)` and returns float64
values; `schema.Regularizer` documents how penalties are called.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.layers.lowering.primitives import square_sum

Kernel = NDArray[np.float32]

# Truncation at two deviations reduces the variance of a normal distribution to this share. The
# variance scaling of slim compensates with a rounded factor, the plain truncated normal does not.
_CUT_VARIANCE = 0.87962566103423978**2
_SLIM_CUT_CORRECTION = 1.3


class ShapesOnly(np.random.Generator):
    """A generator for which layers draw no kernels, since only their shapes are used.

    A kernel of a million classes would take gigabytes.
    """

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))


GLOROT_UNIFORM = schema.VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")
"""The default of Keras."""


def filled(shape: int | tuple[int, ...], value: float) -> jax.Array:
    """Returns a float32 array of one value, for which `jnp.full` would compile a program."""
    # Without its second type, this would too.
    return jnp.asarray(np.full(shape, value, np.float32), jnp.float32)


def draw_kernel(
    initializer: schema.Initializer, shape: tuple[int, ...], rng: np.random.Generator
) -> Kernel:
    """Draws a float32 kernel `[kh, kw, in, out]`, `[k, k, C, 1]` or `[in, out]`; `rng` advances."""
    values: NDArray[np.float64] = implementation_of(initializer)(initializer, shape, rng)
    return values.astype(np.float32)


def _truncated(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Draws a standard normal, and again what is beyond two deviations."""
    values = rng.standard_normal(shape)
    outside = np.abs(values) > 2
    while outside.any():
        values[outside] = rng.standard_normal(int(outside.sum()))
        outside = np.abs(values) > 2
    return values


@implements(schema.TruncatedNormal)
def _truncated_normal(
    initializer: schema.TruncatedNormal, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float64]:
    return initializer.mean + initializer.stddev * _truncated(shape, rng)


@implements(schema.RandomNormal)
def _random_normal(
    initializer: schema.RandomNormal, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float64]:
    return initializer.mean + initializer.stddev * rng.standard_normal(shape)


@implements(schema.VarianceScaling)
def _variance_scaling(
    initializer: schema.VarianceScaling, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Takes the fans from the last two axes, as slim, for depthwise kernels too."""
    area = math.prod(shape[:-2])
    fan_in, fan_out = area * shape[-2], area * shape[-1]
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    variance = initializer.factor / fans[initializer.mode]
    if initializer.uniform:
        limit = math.sqrt(3 * variance)
        return rng.uniform(-limit, limit, shape)
    if initializer.untruncated:
        return math.sqrt(variance) * rng.standard_normal(shape)
    correction = 1 / _CUT_VARIANCE if initializer.exact_cut else _SLIM_CUT_CORRECTION
    return math.sqrt(correction * variance) * _truncated(shape, rng)


@runtime_checkable
class Penalized(Protocol):
    """A layer with a regularisation loss."""

    def penalty(self) -> jax.Array:
        """Returns it without the losses of the layer's parts, a float32 scalar."""


def penalty_of(regularizer: schema.Regularizer | None, arrays: Sequence[jax.Array]) -> jax.Array:
    """Returns the penalty of float32 arrays of any shape, a float32 scalar."""
    total = jnp.zeros((), jnp.float32)
    if regularizer is None:
        return total
    penalty = implementation_of(regularizer)
    for array in arrays:
        total = total + penalty(regularizer, array)
    return total


def norm_regularizer(hyperparams: schema.ConvHyperparams) -> schema.Regularizer | None:
    """Returns the regulariser of scale and offset of batch norms, if any."""
    return hyperparams.regularizer if hyperparams.regularize_norm else None


@implements(schema.L2)
def _l2(regularizer: schema.L2, array: jax.Array) -> jax.Array:
    return square_sum(array) / 2 * regularizer.weight


@implements(schema.L1)
def _l1(regularizer: schema.L1, array: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(array)) * regularizer.weight


Activation = Callable[[jax.Array], jax.Array]


@jax.custom_jvp
def relu6(x: jax.Array) -> jax.Array:
    """Clips to 0..6; the gradient at either end is 0, as TF's."""
    return jnp.clip(x, 0, 6)


@relu6.defjvp
def _relu6_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    return relu6(x), jnp.where((x > 0) & (x < 6), tangent, jnp.zeros_like(tangent))


def hard_swish(x: jax.Array) -> jax.Array:
    """Returns `x * relu6(x + 3) / 6` (arXiv:1905.02244, 5.2)."""
    return x * relu6(x + 3) * (1 / 6)


def _identity(x: jax.Array) -> jax.Array:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "none": _identity,
    "relu": jax.nn.relu,
    "relu6": relu6,
    "leaky_relu": partial(jax.nn.leaky_relu, negative_slope=0.1),
    "swish": jax.nn.swish,
    "hard_swish": hard_swish,
}
