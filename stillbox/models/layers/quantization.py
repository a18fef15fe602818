"""Simulated quantisation (arXiv:1712.05877, section 3; `tf.contrib.quantize` of TF 1.x).

Kernels, with batch norm folded in, and results of layers are rounded to the levels of integers of a
few bits in a range. The range of a kernel is the range of its values; the range of a result is a
moving average over the steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.layers.norm import NormLayer
from stillbox.models.paths import Named

# `ema_decay` of contrib.quantize, which no configuration changes.
_DECAY = 0.999
# Ends of a range that has not been measured.
_UNKNOWN = 6.0

RANGE_ENDS = (".min", ".max")
"""Suffixes of the paths of ranges, which no other variable has."""


@dataclass(frozen=True, eq=False)
class _Step:
    """The number of a step, which is traced and still a static attribute of modules."""

    count: jax.Array


class FakeQuant(nnx.Module):
    """Rounds an array to the levels of a range, the state `min` and `max`.

    Args:
        config: bits, symmetry, delay.
        weights: the array is a kernel. It has the range of its values, and one level less, which
            permits symmetry. Otherwise the range is a moving average over the steps; it
            begins as 0..6, which does not enter the average.
    """

    step: _Step | None = None
    """See `set_training_step`."""

    def __init__(self, config: schema.Quantization, *, weights: bool = False) -> None:
        self.min = nnx.BatchStat(jnp.full((), -_UNKNOWN if weights else 0.0, jnp.float32))
        self.max = nnx.BatchStat(jnp.full((), _UNKNOWN, jnp.float32))
        self.config = config
        self.weights = weights

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Rounds an array of any shape and float type; in training, measures its range first.

        Rounding is not delayed without `set_training_step`.
        """
        if not train:
            return self._round(x)
        step = None if self.step is None else self.step.count
        self._measure(x, step)
        if step is None or not self.config.delay:
            return self._round(x)
        return jnp.where(step >= self.config.delay, self._round(x), x)

    def _round(self, x: jax.Array) -> jax.Array:
        bits = self.config.weight_bits if self.weights else self.config.activation_bits
        rounded = fake_quant(
            x.astype(jnp.float32), self.min[...], self.max[...], bits, narrow=self.weights
        )
        return rounded.astype(x.dtype)

    def _measure(self, x: jax.Array, step: jax.Array | None) -> None:
        x = jax.lax.stop_gradient(x).astype(jnp.float32)
        low, high = jnp.minimum(jnp.min(x), 0.0), jnp.maximum(jnp.max(x), 0.0)
        if self.config.symmetric:
            low, high = _symmetric(low, high, self.config.activation_bits, narrow=self.weights)
        for variable, value in ((self.min, low), (self.max, high)):
            old = variable[...]
            variable.set_value(value if self.weights else old + _rate(step) * (value - old))


Rounding = Callable[[jax.Array], jax.Array]


class Roundings(Named[str, FakeQuant]):
    """The roundings of one kernel of a layer and of its results, a pair for each map.

    Args:
        config: bits, symmetry, delay.
        maps: number of maps that the kernel is applied to.
        prefix: of their names.
    """

    def __init__(self, config: schema.Quantization, maps: int, prefix: str = "") -> None:
        numbers = [f"_{number}" for number in range(maps)] if maps > 1 else [""]
        self.pairs = tuple((f"{prefix}weights_quant{n}", f"{prefix}act_quant{n}") for n in numbers)
        roundings = {}
        for kernel, result in self.pairs:
            roundings[kernel] = FakeQuant(config, weights=True)
            roundings[result] = FakeQuant(config)
        super().__init__("{}", roundings)

    def of_map(self, use: int, *, train: bool) -> tuple[Rounding, Rounding]:
        """Returns the rounding of the kernel and of the result."""
        kernel, result = self.pairs[use]
        return partial(self[kernel], train=train), partial(self[result], train=train)


def set_training_step(module: nnx.Module, step: jax.Array) -> None:
    """Sets the training step that the roundings of a module are traced in.

    Args:
        module: that has the roundings.
        step: int32 scalar, steps before this one. The delay of quantisation is compared with it.
    """
    module.set_attributes(FakeQuant, step=_Step(step), raise_if_not_found=False)


def _rate(step: jax.Array | None) -> jax.Array | float:
    """Returns the weight of a step's range in an average without bias towards its first value."""
    if step is None:
        return 1 - _DECAY
    log_decay = math.log(_DECAY)
    return math.expm1(log_decay) / jnp.expm1(log_decay * (step.astype(jnp.float32) + 1))


def _symmetric(
    low: jax.Array, high: jax.Array, bits: int, *, narrow: bool
) -> tuple[jax.Array, jax.Array]:
    # Two's complement has one more negative number than positive ones.
    ratio = 1.0 if narrow else ((1 << bits) - 2) / (1 << bits)
    return jnp.minimum(low, -high / ratio), jnp.maximum(high, -low * ratio)


def fake_quant(
    x: jax.Array, low: jax.Array, high: jax.Array, bits: int, *, narrow: bool
) -> jax.Array:
    """Rounds to the levels of a range, as `tf.quantization.fake_quant_with_min_max_vars`.

    The range is shifted to make 0 a level, and values beyond it become its ends. The input has its
    gradient inside the shifted range and 0 outside; the ends of the range have none.

    Args:
        x: float32, any shape.
        low: float32 scalar, at most 0.
        high: float32 scalar, at least 0.
        bits: there are `2 ** bits` levels.
        narrow: omit the lowest level.
    """
    levels = (1 << bits) - 1 - narrow
    scale = (high - low) / levels
    # A range of a single value rounds everything to 0.
    empty = scale <= 0
    divisor = jnp.where(empty, 1.0, scale)
    # A quotient, not a product with the inverse: the middle of a symmetric range is a tie.
    zero = jnp.clip(jnp.floor(-low / divisor + 0.5), 0, levels)
    inverse = jnp.where(empty, 0.0, 1 / divisor)
    return _round(x, scale, inverse, zero, levels)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _round(
    x: jax.Array, scale: jax.Array, inverse: jax.Array, zero: jax.Array, levels: int
) -> jax.Array:
    low, high = -zero * scale, (levels - zero) * scale
    # In TensorFlow's order, which decides between two levels at equal distance.
    above = (jnp.minimum(jnp.maximum(x, low), high) - low) * inverse
    return jnp.floor(above - zero + 0.5) * scale


def _round_forward(
    x: jax.Array, scale: jax.Array, inverse: jax.Array, zero: jax.Array, levels: int
) -> tuple[jax.Array, jax.Array]:
    inside = (x >= -zero * scale) & (x <= (levels - zero) * scale)
    return _round(x, scale, inverse, zero, levels), inside | (scale <= 0)


def _round_backward(
    levels: int, inside: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, None, None, None]:
    return jnp.where(inside, gradient, 0.0), None, None, None


_round.defvjp(_round_forward, _round_backward)


def fold_norm(
    product: Callable[[jax.Array], jax.Array],
    kernel: jax.Array,
    norm: NormLayer,
    round_kernel: Rounding,
    *,
    bias: jax.Array | float,
    is_depthwise: bool,
    train: bool,
) -> jax.Array:
    """Convolves and normalises with the norm's factor in the rounded kernel, float32.

    In training the kernel has the factor of the moving variance, which changes slowly. The result
    is corrected to the batch's variance, which takes a second convolution (`fold_batch_norms.py`).
    Moving statistics are updated.

    Args:
        product: convolves with a kernel.
        kernel: before it is scaled.
        norm: its statistics, factor and offset.
        round_kernel: applied to the scaled kernel.
        bias: added before the norm.
        is_depthwise: the kernel's channels are its last axis but one.
        train: normalise by the batch, unless the norm is frozen.
    """
    scale, offset = norm.affine(kernel.shape[-2 if is_depthwise else -1])
    inverse = jax.lax.rsqrt(norm.var[...] + norm.config.epsilon)
    factor = inverse * scale
    mean: jax.Array = norm.mean[...]
    correction: jax.Array | float = 1.0
    if train and not norm.frozen:
        mean, var = norm.observe(product(kernel) + bias)
        batch_inverse = jax.lax.rsqrt(var + norm.config.epsilon)
        correction = batch_inverse / inverse
    folded = round_kernel(kernel * (factor[:, None] if is_depthwise else factor))
    y = product(folded).astype(jnp.float32)
    return y * correction + (offset + (bias - mean) * factor * correction)
