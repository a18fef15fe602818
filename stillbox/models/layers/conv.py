"""Convolution layers with bias or normalisation, activation and penalty."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.initializers import ShapesOnly, draw_kernel
from stillbox.models.layers.lowering.convolution import conv2d, depthwise_conv2d
from stillbox.models.layers.lowering.padding import Padding
from stillbox.models.layers.masking import without_padding
from stillbox.models.layers.norm import NormLayer
from stillbox.models.layers.penalties import norm_regularizer, penalty_of

Shape = tuple[int, ...]


class ConvLayer(nnx.Module):
    """Base of all layers: a float32 kernel, then bias or normalisation, then activation.

    Args:
        kernel_shape: HWIO, `[k, k, C, 1]`, or `[in, out]`.
        channels: of the output.
        stride: of rows and columns.
        hyperparams: initialiser, penalty, normalisation, activation.
        freeze_norm: normalise with the moving statistics in training too.
        dtype: of the product; parameters, normalisation and outputs with a bias are float32.
        rng: draws the kernel.
        padding: see `lowering.padding.Padding`.
        bias: add a bias if there is no normalisation.
    """

    def __init__(
        self,
        kernel_shape: Shape,
        channels: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        *,
        freeze_norm: bool,
        dtype: Any,  # noqa: ANN401
        rng: np.random.Generator,
        padding: Padding = "same",
        bias: bool = True,
    ) -> None:
        self.kernel = _parameter(hyperparams, kernel_shape, rng)
        normalized = hyperparams.batch_norm is not None
        if hyperparams.force_bias if normalized else bias:
            self.bias = nnx.Param(jnp.zeros(channels, jnp.float32))
        if hyperparams.batch_norm is not None:
            self.norm = NormLayer(
                channels,
                hyperparams.batch_norm,
                frozen=freeze_norm,
                regularizer=norm_regularizer(hyperparams),
            )
        self.stride = stride
        self.dilation = 1
        self.padding: Padding = padding
        self.activation = hyperparams.activation
        self.regularizer = hyperparams.regularizer
        self.regularize_bias = hyperparams.regularize_bias
        self.dtype = jnp.dtype(dtype)
        # Name of its operations in profiles; the detector sets it to the layer's path.
        self.scope = type(self).__name__

    def penalty(self) -> jax.Array:
        """The layer's regularisation loss without its norm's, a float32 scalar."""
        return penalty_of(self.regularizer, self._penalized())

    def _penalized(self) -> tuple[jax.Array, ...]:
        return (self.kernel[...], *self._penalized_bias())

    def _penalized_bias(self) -> tuple[jax.Array, ...]:
        return (self.bias[...],) if self.regularize_bias and hasattr(self, "bias") else ()

    def _convolve(self, x: jax.Array, kernel: jax.Array, *, depthwise: bool) -> jax.Array:
        dilated = {} if depthwise else {"dilation": self.dilation}
        convolution = depthwise_conv2d if depthwise else conv2d
        with jax.named_scope(self.scope):
            x, padding = without_padding(
                x.astype(self.dtype), kernel.shape[0], self.stride, self.padding
            )
            return convolution(
                x, kernel.astype(self.dtype), self.stride, padding=padding, **dilated
            )

    def _finish(self, product: jax.Array, *, train: bool) -> jax.Array:
        with jax.named_scope(self.scope):
            # Outputs with a bias are predictions and stay float32: in bfloat16, updates of a logit
            # of -4.6 would be rounded away.
            if hasattr(self, "bias"):
                product = product.astype(jnp.float32) + self.bias[...]
            if hasattr(self, "norm"):
                return self.norm(product.astype(self.dtype), self.activation, train=train)
            return ACTIVATIONS[self.activation](product)


class Conv2d(ConvLayer):
    """Convolution of all channels, bias or normalisation, activation.

    Args:
        inputs: channels of the input.
        channels: channels of the output.
        size: side of the square kernel.
        stride: as for `ConvLayer`.
        hyperparams: as for `ConvLayer`.
        dilation: distance of the kernel's taps in pixels; above 1, the stride has to be 1.
        options: as for `ConvLayer`.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        size: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        *,
        dilation: int = 1,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__((size, size, inputs, channels), channels, stride, hyperparams, **options)
        self.dilation = dilation

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), D]`."""
        return self._finish(self._convolve(x, self.kernel[...], depthwise=False), train=train)


class DepthwiseConv2d(ConvLayer):
    """Convolution of every channel by itself, normalisation, activation; arguments as `Conv2d`."""

    def __init__(
        self,
        channels: int,
        size: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__((size, size, channels, 1), channels, stride, hyperparams, **options)
        if not hyperparams.regularize_depthwise:
            self.regularizer = None

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), C]`."""
        return self._finish(self._convolve(x, self.kernel[...], depthwise=True), train=train)


class SeparableConv2d(ConvLayer):
    """A depthwise (strided) convolution, directly followed by a 1x1.

    Arguments as `Conv2d`; each input channel is convolved to `multiplier` channels.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        size: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        *,
        multiplier: int = 1,
        **options: Any,  # noqa: ANN401
    ) -> None:
        shape = (1, 1, inputs * multiplier, channels)
        super().__init__(shape, channels, stride, hyperparams, **options)
        shape = (size, size, inputs, multiplier)
        self.depthwise_kernel = _parameter(hyperparams, shape, options["rng"])
        self.regularize_depthwise = hyperparams.regularize_depthwise

    def _penalized(self) -> tuple[jax.Array, ...]:
        kernels = super()._penalized()
        return (self.depthwise_kernel[...], *kernels) if self.regularize_depthwise else kernels

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), D]`."""
        kernel = self.depthwise_kernel[...]
        if kernel.shape[3] == 1:
            filtered = self._convolve(x, kernel, depthwise=True)
        else:
            # For a few channels a dense convolution, mostly by zeros, is faster than a grouped one,
            # above all its gradient: on a CPU nine times for the first layer of Inception v2.
            filtered = self._convolve(x, _dense(kernel), depthwise=False)
        return self._finish(conv2d(filtered, self.kernel[...].astype(self.dtype), 1), train=train)


def _dense(kernel: jax.Array) -> jax.Array:
    """Maps a depthwise kernel `[k, k, C, M]` to that of all channels, `[k, k, C, C * M]`."""
    channels = jnp.eye(kernel.shape[2], dtype=kernel.dtype)
    spread = kernel[:, :, :, None] * channels[:, :, None]
    return spread.reshape(*kernel.shape[:3], -1)


def _parameter(
    hyperparams: schema.ConvHyperparams, shape: Shape, rng: np.random.Generator
) -> nnx.Param:
    if isinstance(rng, ShapesOnly):
        return nnx.Param(jnp.zeros(shape, jnp.float32))
    return nnx.Param(jnp.asarray(draw_kernel(hyperparams.initializer, shape, rng)))
