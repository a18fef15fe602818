"""A depthwise convolution and a 1x1 as one layer."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.models.layers.conv import ConvLayer, kernel_parameter
from stillbox.models.layers.initializers import GLOROT_UNIFORM
from stillbox.models.layers.lowering.convolution import conv2d


class SeparableConv2d(ConvLayer):
    """A depthwise (strided) convolution, directly followed by a 1x1.

    Arguments as `Conv2d`; each input channel is convolved to `multiplier` channels. With
    `pointwise_defaults`, the 1x1 kernel has Keras's initialiser and no penalty.
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
        pointwise_defaults: bool = False,
        **options: Any,  # noqa: ANN401
    ) -> None:
        shape = (1, 1, inputs * multiplier, channels)
        pointwise = hyperparams
        if pointwise_defaults:
            pointwise = replace(hyperparams, initializer=GLOROT_UNIFORM)
        super().__init__(shape, channels, stride, pointwise, **options)
        shape = (size, size, inputs, multiplier)
        self.depthwise_kernel = kernel_parameter(hyperparams, shape, options["rng"])
        self.regularize_depthwise = hyperparams.regularize_depthwise
        self.regularize_pointwise = not pointwise_defaults
        if (quantization := options.get("quantization")) is not None:
            self._add_roundings("depthwise_", quantization)

    def _penalized(self) -> tuple[jax.Array, ...]:
        kernels = super()._penalized() if self.regularize_pointwise else self._penalized_bias()
        return (self.depthwise_kernel[...], *kernels) if self.regularize_depthwise else kernels

    def _input(self, x: jax.Array) -> jax.Array:
        return self._filter(x, self.depthwise_kernel[...])

    def _rounded_input(self, x: jax.Array, *, train: bool, site: int) -> jax.Array:
        round_kernel, rounded = (
            partial(getattr(self, self._rounding(f"depthwise_{name}", site)), train=train)
            for name in ("weights_quant", "act_quant")
        )
        return rounded(self._filter(x, round_kernel(self.depthwise_kernel[...])))

    def _filter(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        if kernel.shape[3] == 1:
            return self._convolve(x, kernel, depthwise=True)
        # For a few channels a dense convolution, mostly by zeros, is faster than a grouped one,
        # above all its gradient: on a CPU nine times for the first layer of Inception v2.
        return self._convolve(x, _dense(kernel), depthwise=False)

    def _product(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        return conv2d(x, kernel.astype(self.dtype), 1)


def _dense(kernel: jax.Array) -> jax.Array:
    """Maps a depthwise kernel `[k, k, C, M]` to that of all channels, `[k, k, C, C * M]`."""
    channels = jnp.eye(kernel.shape[2], dtype=kernel.dtype)
    spread = kernel[:, :, :, None] * channels[:, :, None]
    return spread.reshape(*kernel.shape[:3], -1)
