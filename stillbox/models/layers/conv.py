"""Convolution layers with bias or normalisation, activation and penalty."""

from functools import partial
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
from stillbox.models.layers.quantization import FakeQuant, fold_norm

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
        quantization: round kernel and result; None: do not.
        sites: number of maps that the kernel is applied to in a step. The roundings of each map
            have ranges of their own.
    """

    by_input = False
    """Whether the kernel's channels are its last axis but one, as those of depthwise ones."""

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
        quantization: schema.Quantization | None = None,
        sites: int = 1,
    ) -> None:
        self.kernel = kernel_parameter(hyperparams, kernel_shape, rng)
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
        self.sites = sites
        if quantization is not None:
            self._add_roundings("", quantization)

    def __call__(self, x: jax.Array, *, train: bool, site: int = 0) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), D]`.

        `site` is the number of the map, below `sites`.
        """
        if self.is_quantized:
            norm: NormLayer | None = getattr(self, "norm", None)
            return self.apply_rounded(x, norm, self.activation, train=train, site=site)
        return self._finish(self._product(self._input(x), self.kernel[...]), train=train)

    @property
    def is_quantized(self) -> bool:
        """Whether kernel and result are rounded."""
        return hasattr(self, self._rounding("weights_quant", 0))

    def apply_rounded(
        self, x: jax.Array, norm: NormLayer | None, activation: str, *, train: bool, site: int = 0
    ) -> jax.Array:
        """Convolves, normalises by `norm` folded into the kernel, activates and rounds."""
        x = self._rounded_input(x, train=train, site=site)
        bias = self.bias[...] if hasattr(self, "bias") else 0.0
        product = partial(self._product, x)
        round_kernel = partial(getattr(self, self._rounding("weights_quant", site)), train=train)
        if norm is None:
            y = product(round_kernel(self.kernel[...])).astype(jnp.float32) + bias
        else:
            y = fold_norm(
                product,
                self.kernel[...],
                norm,
                round_kernel,
                bias=bias,
                by_input=self.by_input,
                train=train,
            )
        with jax.named_scope(self.scope):
            rounded = getattr(self, self._rounding("act_quant", site))
            y = rounded(ACTIVATIONS[activation](y), train=train)
        # Predictions stay float32, as without rounding.
        return y.astype(self.dtype) if norm is not None or not hasattr(self, "bias") else y

    def _add_roundings(self, prefix: str, quantization: schema.Quantization) -> None:
        for site in range(self.sites):
            name = self._rounding(f"{prefix}weights_quant", site)
            setattr(self, name, FakeQuant(quantization, weights=True))
            setattr(self, self._rounding(f"{prefix}act_quant", site), FakeQuant(quantization))

    def _rounding(self, name: str, site: int) -> str:
        return f"{name}_{site}" if self.sites > 1 else name

    def _input(self, x: jax.Array) -> jax.Array:
        """Returns what the kernel is applied to."""
        return x

    def _rounded_input(self, x: jax.Array, *, train: bool, site: int) -> jax.Array:
        return x

    def _product(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """Convolves with the kernel, or another of its shape."""
        return self._convolve(x, kernel, depthwise=self.by_input)

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
                x.astype(self.dtype), max(kernel.shape[:2]), self.stride, self.padding
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
        size: side of the square kernel, or rows and columns.
        stride: as for `ConvLayer`.
        hyperparams: as for `ConvLayer`.
        dilation: distance of the kernel's taps in pixels; above 1, the stride has to be 1.
        options: as for `ConvLayer`.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        size: int | tuple[int, int],
        stride: int,
        hyperparams: schema.ConvHyperparams,
        *,
        dilation: int = 1,
        **options: Any,  # noqa: ANN401
    ) -> None:
        rows, columns = (size, size) if isinstance(size, int) else size
        super().__init__(
            (rows, columns, inputs, channels), channels, stride, hyperparams, **options
        )
        self.dilation = dilation


class DepthwiseConv2d(ConvLayer):
    """Convolution of every channel by itself, normalisation, activation; arguments as `Conv2d`."""

    by_input = True

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


def kernel_parameter(
    hyperparams: schema.ConvHyperparams, shape: Shape, rng: np.random.Generator
) -> nnx.Param:
    """Returns a fresh kernel, float32."""
    if isinstance(rng, ShapesOnly):
        return nnx.Param(jnp.zeros(shape, jnp.float32))
    return nnx.Param(jnp.asarray(draw_kernel(hyperparams.initializer, shape, rng)))
