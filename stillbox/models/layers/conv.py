"""A convolution with its bias or normalisation, its activation and its penalty."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.initializers import draw_kernel
from stillbox.models.layers.lowering import conv2d, depthwise_conv2d
from stillbox.models.layers.norm import BatchNorm


class ConvLayer(nnx.Module):
    """What every convolution here has: a float32 kernel, and what follows the product.

    Args:
        kernel_shape: HWIO, or `[k, k, C, 1]`.
        channels: of the output.
        stride: of rows and columns alike.
        hyperparams: initialiser, penalty, normalisation, activation.
        freeze_norm: normalise with the moving statistics in training too.
        dtype: of the product; parameters, normalisation and what has a bias are float32.
        rng: draws the kernel.
    """

    def __init__(
        self,
        kernel_shape: tuple[int, int, int, int],
        channels: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        *,
        freeze_norm: bool,
        dtype: Any,  # noqa: ANN401
        rng: np.random.Generator,
    ) -> None:
        kernel = draw_kernel(hyperparams.initializer, kernel_shape, rng)
        self.kernel = nnx.Param(jnp.asarray(kernel))
        if hyperparams.batch_norm is None:
            self.bias = nnx.Param(jnp.zeros(channels, jnp.float32))
        else:
            self.norm = BatchNorm(channels, hyperparams.batch_norm, frozen=freeze_norm)
        self.stride = stride
        self.activation = hyperparams.activation
        self.regularizer = hyperparams.regularizer
        self.dtype = jnp.dtype(dtype)

    def penalty(self) -> jax.Array:
        """The kernel's share of the regularisation loss, a float32 scalar (fact sheet 3.6)."""
        if self.regularizer is None:
            return jnp.zeros((), jnp.float32)
        return _PENALTIES[type(self.regularizer)](self.kernel[...]) * self.regularizer.weight

    def _finish(self, product: jax.Array, *, train: bool) -> jax.Array:
        if hasattr(self, "norm"):
            return self.norm(product, self.activation, train=train)
        # Stays float32: these are predictions, and a logit of -4.6 would lose all that it learnt.
        return ACTIVATIONS[self.activation](product.astype(jnp.float32) + self.bias[...])


class Conv2d(ConvLayer):
    """Convolution of all channels with SAME padding, bias or normalisation, activation.

    Args:
        inputs: channels of the input.
        channels: channels of the output.
        size: side of the square kernel.
        stride: of rows and columns alike.
        hyperparams: initialiser, penalty, normalisation, activation.
        options: as for `ConvLayer`.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        size: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__((size, size, inputs, channels), channels, stride, hyperparams, **options)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), D]`."""
        product = conv2d(x.astype(self.dtype), self.kernel[...].astype(self.dtype), self.stride)
        return self._finish(product, train=train)


class DepthwiseConv2d(ConvLayer):
    """Convolution of every channel by itself with SAME padding, normalisation, activation.

    Args:
        channels: of input and output.
        size: side of the square kernel.
        stride: of rows and columns alike.
        hyperparams: initialiser, penalty, normalisation, activation.
        options: as for `ConvLayer`.
    """

    def __init__(
        self,
        channels: int,
        size: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__((size, size, channels, 1), channels, stride, hyperparams, **options)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), C]`."""
        kernel = self.kernel[...].astype(self.dtype)
        product = depthwise_conv2d(x.astype(self.dtype), kernel, self.stride)
        return self._finish(product, train=train)


def _half_sum_of_squares(kernel: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(kernel)) / 2


def _sum_of_magnitudes(kernel: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(kernel))


_PENALTIES: dict[type, Callable[[jax.Array], jax.Array]] = {
    schema.L2: _half_sum_of_squares,
    schema.L1: _sum_of_magnitudes,
}
