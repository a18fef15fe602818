"""Convolution and fully connected layers with bias or normalisation, activation and penalty."""

from dataclasses import replace
from functools import partial
from typing import Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from stillbox.experiment import schema
from stillbox.models.layers.hyperparams import (
    ACTIVATIONS,
    GLOROT_UNIFORM,
    ShapesOnly,
    draw_kernel,
    filled,
    penalty_of,
)
from stillbox.models.layers.lowering.convolution import conv2d, depthwise_conv2d
from stillbox.models.layers.lowering.primitives import add_bias, as_float32
from stillbox.models.layers.lowering.windows import Padding
from stillbox.models.layers.lowering.winograd import (
    LayerKernels,
    PreparedKernels,
    has_fitting_shape,
)
from stillbox.models.layers.masking import without_padding, zero_padding
from stillbox.models.layers.norm import GroupNormLayer, NormLayer, build_norm
from stillbox.models.layers.quantization import Roundings, fold_norm
from stillbox.models.paths import named_modules


class LayerOptions(TypedDict, total=False):
    """Keyword arguments that all layers share; see `ConvLayer`."""

    freeze_norm: Required[bool]
    dtype: Required[DTypeLike]
    rng: Required[np.random.Generator]
    padding: Padding
    bias: bool
    quantization: schema.Quantization | None
    num_uses: int


class ConvLayer(nnx.Module):
    """Base of all layers: a float32 kernel, then bias or normalisation, then activation.

    Args:
        kernel_shape: HWIO, `[k, k, C, 1]`, or `[in, out]`.
        channels: of the output.
        stride: of rows and columns.
        hyperparams: initialiser, penalty, normalisation, activation.
        freeze_norm: batch norm uses the moving statistics in training too.
        dtype: of the product; parameters, normalisation and outputs with a bias are float32.
        rng: draws the kernel.
        padding: see `lowering.windows.Padding`.
        bias: add a bias if there is no normalisation.
        quantization: round kernel and result; None: do not.
        num_uses: number of maps that the kernel is applied to in a step. Each has separate ranges
            of rounding.
    """

    is_depthwise = False
    """Whether the kernel's channels are its last axis but one."""
    prepared: LayerKernels | None = None
    """Transformed kernels of a model with constant weights; see `share_prepared_kernels`."""

    def __init__(
        self,
        kernel_shape: tuple[int, ...],
        channels: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        *,
        freeze_norm: bool,
        dtype: DTypeLike,
        rng: np.random.Generator,
        padding: Padding = "same",
        bias: bool = True,
        quantization: schema.Quantization | None = None,
        num_uses: int = 1,
    ) -> None:
        self.kernel = kernel_parameter(hyperparams, kernel_shape, rng)
        biased = hyperparams.force_bias if hyperparams.normalizes else bias
        self.bias = nnx.Param(filled(channels, 0)) if biased else None
        self.norm = build_norm(channels, hyperparams, frozen=freeze_norm)
        self.channels, self.stride = channels, stride
        self.dilation = 1
        self.padding: Padding = padding
        self.activation = hyperparams.activation
        self.regularizer = hyperparams.regularizer
        self.regularize_bias = hyperparams.regularize_bias
        self.dtype = jnp.dtype(dtype)
        # Name of its operations in profiles; the detector sets it to the layer's path.
        self.scope = type(self).__name__
        self.roundings = None if quantization is None else Roundings(quantization, num_uses)

    def __call__(
        self, x: jax.Array, *, train: bool, use: int = 0, factor: jax.Array | None = None
    ) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), D]`.

        Args:
            x: the map.
            train: normalise by the batch, measure ranges of rounding.
            use: the number of the map, below `num_uses`.
            factor: a scalar of the map that multiplies kernel and bias; None: 1.
        """
        if self.roundings is not None:
            # A rule refuses rounding with group norm, which is no part of a kernel.
            assert not isinstance(self.norm, GroupNormLayer)
            return self.apply_rounded(
                x, self.norm, self.activation, train=train, use=use, factor=factor
            )
        # Kernels that are prepared for one map serve all maps, unless they differ by the factor.
        place = 0 if factor is None else use
        product = self._product(self._input(x), _scaled(self.kernel, factor), use=place)
        return self._finish(product, train=train, factor=factor)

    def apply_rounded(
        self,
        x: jax.Array,
        norm: NormLayer | None,
        activation: str,
        *,
        train: bool,
        use: int = 0,
        factor: jax.Array | None = None,
    ) -> jax.Array:
        """Convolves, normalises by `norm` folded into the kernel, activates and rounds."""
        assert self.roundings is not None
        x = self._rounded_input(x, train=train, use=use)
        kernel = _scaled(self.kernel, factor)
        bias = 0.0 if self.bias is None else _scaled(self.bias, factor)
        product = partial(self._product, x, use=use)
        round_kernel, round_result = self.roundings.of_map(use, train=train)
        if norm is None:
            y = product(round_kernel(kernel)).astype(jnp.float32) + bias
        else:
            y = fold_norm(
                product,
                kernel,
                norm,
                round_kernel,
                bias=bias,
                is_depthwise=self.is_depthwise,
                train=train,
            )
        with jax.named_scope(self.scope):
            y = round_result(ACTIVATIONS[activation](y))
        # Predictions stay float32, as in `_finish`.
        return y.astype(self.dtype) if norm is not None or self.bias is None else y

    def fill_bias(self, value: float) -> None:
        """Sets all numbers of the bias."""
        assert self.bias is not None
        self.bias[...] = filled(self.channels, value)

    def scope_beside(self, name: str) -> str:
        """Returns the scope of another operation of the layer's part, such as a sum."""
        return "/".join((*self.scope.split("/")[:-1], name))

    def _input(self, x: jax.Array) -> jax.Array:
        """Returns what the kernel is applied to."""
        return x

    def _rounded_input(self, x: jax.Array, *, train: bool, use: int) -> jax.Array:
        return x

    def _product(self, x: jax.Array, kernel: jax.Array, *, use: int = 0) -> jax.Array:
        """Convolves with the kernel, or the rounded one of a map."""
        return self._convolve(x, kernel, depthwise=self.is_depthwise, use=use)

    def penalty(self) -> jax.Array:
        """The layer's regularisation loss without its norm's, a float32 scalar."""
        return penalty_of(self.regularizer, self._penalized())

    def _penalized(self) -> tuple[jax.Array, ...]:
        return (self.kernel[...], *self._penalized_bias())

    def _penalized_bias(self) -> tuple[jax.Array, ...]:
        return (self.bias[...],) if self.regularize_bias and self.bias is not None else ()

    def _convolve(
        self, x: jax.Array, kernel: jax.Array, *, depthwise: bool, use: int = 0
    ) -> jax.Array:
        with jax.named_scope(self.scope):
            x, padding = without_padding(
                x.astype(self.dtype), max(kernel.shape[:2]), self.stride, self.padding
            )
            kernel = kernel.astype(self.dtype)
            if depthwise:
                return depthwise_conv2d(x, kernel, self.stride, padding=padding)
            prepared = None
            if self.prepared is not None:
                prepared = partial(self.prepared.transformed, kernel, use=use)
            dilation = self.dilation
            return conv2d(
                x, kernel, self.stride, padding=padding, dilation=dilation, prepared=prepared
            )

    def _finish(
        self, product: jax.Array, *, train: bool, factor: jax.Array | None = None
    ) -> jax.Array:
        with jax.named_scope(self.scope):
            # Outputs with a bias are predictions and stay float32: in bfloat16, updates of a logit
            # of -4.6 would be rounded away.
            if self.bias is not None:
                dtype = jnp.dtype(jnp.float32) if self.norm is None else self.dtype
                product = add_bias(as_float32(product), _scaled(self.bias, factor), dtype)
            if self.norm is not None:
                return self.norm(product.astype(self.dtype), self.activation, train=train)
            return ACTIVATIONS[self.activation](product)


def _scaled(parameter: nnx.Param, factor: jax.Array | None) -> jax.Array:
    value: jax.Array = parameter[...]
    return value if factor is None else value * factor


def share_prepared_kernels(module: nnx.Module, kernels: PreparedKernels) -> None:
    """Lets all convolutions of a module take prepared kernels, and add those that are missing."""
    for path, layer in named_modules(module):
        if isinstance(layer, ConvLayer):
            layer.prepared = LayerKernels(".".join(path), kernels)


def may_prepare_kernels(module: nnx.Module) -> bool:
    """Returns whether there may be prepared kernels of a module's convolutions."""
    layers = (layer for _, layer in named_modules(module) if isinstance(layer, ConvLayer))
    return any(layer.stride == 1 and has_fitting_shape(layer.kernel.shape) for layer in layers)


class Conv2d(ConvLayer):
    """Convolution of all channels, bias or normalisation, activation.

    Args:
        inputs: channels of the input.
        channels: channels of the output.
        size: side of the square kernel, or rows and columns.
        stride: of rows and columns.
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
        **options: Unpack[LayerOptions],
    ) -> None:
        rows, columns = (size, size) if isinstance(size, int) else size
        super().__init__(
            (rows, columns, inputs, channels), channels, stride, hyperparams, **options
        )
        self.dilation = dilation


class DepthwiseConv2d(ConvLayer):
    """Convolution of each channel separately, normalisation, activation; arguments as `Conv2d`."""

    is_depthwise = True

    def __init__(
        self,
        channels: int,
        size: int,
        stride: int,
        hyperparams: schema.ConvHyperparams,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__((size, size, channels, 1), channels, stride, hyperparams, **options)
        if not hyperparams.regularize_depthwise:
            self.regularizer = None


def kernel_parameter(
    hyperparams: schema.ConvHyperparams, shape: tuple[int, ...], rng: np.random.Generator
) -> nnx.Param:
    """Returns a fresh kernel, float32."""
    if isinstance(rng, ShapesOnly):
        return nnx.Param(jnp.zeros(shape, jnp.float32))
    # Without the type jax 0.10 compiles a program for each shape.
    return nnx.Param(jnp.asarray(draw_kernel(hyperparams.initializer, shape, rng), jnp.float32))


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
        **options: Unpack[LayerOptions],
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
        quantization, maps = options.get("quantization"), options.get("num_uses", 1)
        self.depthwise_roundings = (
            None if quantization is None else Roundings(quantization, maps, "depthwise_")
        )

    def _penalized(self) -> tuple[jax.Array, ...]:
        kernels = super()._penalized() if self.regularize_pointwise else self._penalized_bias()
        return (self.depthwise_kernel[...], *kernels) if self.regularize_depthwise else kernels

    def _input(self, x: jax.Array) -> jax.Array:
        return self._filter(x, self.depthwise_kernel[...])

    def _rounded_input(self, x: jax.Array, *, train: bool, use: int) -> jax.Array:
        assert self.depthwise_roundings is not None
        round_kernel, round_result = self.depthwise_roundings.of_map(use, train=train)
        return round_result(self._filter(x, round_kernel(self.depthwise_kernel[...])))

    def _filter(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        if kernel.shape[3] == 1:
            return self._convolve(x, kernel, depthwise=True)
        # For a few channels a dense convolution, mostly by zeros, is faster than a grouped one,
        # above all its gradient: on a CPU nine times for the first layer of Inception v2.
        return self._convolve(x, _dense(kernel), depthwise=False)

    def _product(self, x: jax.Array, kernel: jax.Array, *, use: int = 0) -> jax.Array:
        with jax.named_scope(self.scope):
            return conv2d(x, kernel.astype(self.dtype), 1)


def _dense(kernel: jax.Array) -> jax.Array:
    """Maps a depthwise kernel `[k, k, C, M]` to a kernel of all channels, `[k, k, C, C * M]`."""
    channels = jnp.eye(kernel.shape[2], dtype=kernel.dtype)
    spread = kernel[:, :, :, None] * channels[:, :, None]
    return spread.reshape(*kernel.shape[:3], -1)


class Dense(ConvLayer):
    """Fully connected layer with bias or normalisation, activation and penalty.

    It maps rows of `inputs` numbers to rows of `channels`; other arguments as `ConvLayer`.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        hyperparams: schema.ConvHyperparams,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__((inputs, channels), channels, 1, hyperparams, **options)

    def __call__(
        self, x: jax.Array, *, train: bool, use: int = 0, factor: jax.Array | None = None
    ) -> jax.Array:
        """Maps `[N, C]` to `[N, D]`."""
        with jax.named_scope(self.scope):
            product = jnp.matmul(
                x.astype(self.dtype),
                _scaled(self.kernel, factor).astype(self.dtype),
                preferred_element_type=jnp.float32,
            )
        # Normalisation expects rows and columns.
        return self._finish(product[:, None, None], train=train, factor=factor)[:, 0, 0]


_BLOCK = 2


class SpaceToDepthConv2d(Conv2d):
    """A convolution of odd size, stride 2 and symmetric padding over blocks of two by two pixels.

    Arguments, kernel and results are as in `Conv2d`. Matrix units of accelerators multiply
    columns of channels, and an image has three while its blocks have twelve. The kernel is padded
    by a row and a column of zeros to begin at a block.
    """

    def __call__(
        self, x: jax.Array, *, train: bool, use: int = 0, factor: jax.Array | None = None
    ) -> jax.Array:
        """Maps `[B, H, W, C]` of even sides to `[B, H / 2, W / 2, D]`."""
        folded_kernel = _fold_kernel(_scaled(self.kernel, factor).astype(self.dtype))
        before = -(-(self.kernel.shape[0] // 2) // _BLOCK)
        after = folded_kernel.shape[0] - 1 - before
        pads = ((0, 0), (before, after), (before, after), (0, 0))
        folded = jnp.pad(space_to_depth(zero_padding(x.astype(self.dtype))), pads)
        product = conv2d(folded, folded_kernel, 1, padding="valid")
        return self._finish(product, train=train, factor=factor)


def space_to_depth(x: jax.Array) -> jax.Array:
    """Maps `[B, H, W, C]` to `[B, H / 2, W / 2, 4 C]`; channels in the order row, column, C."""
    batch, height, width, channels = x.shape
    rows, columns = height // _BLOCK, width // _BLOCK
    blocks = x.reshape(batch, rows, _BLOCK, columns, _BLOCK, channels)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows, columns, -1)


def _fold_kernel(kernel: jax.Array) -> jax.Array:
    """Maps `[k, k, C, D]` of odd k to `[(k + 1) / 2, (k + 1) / 2, 4 C, D]`."""
    # The first tap is half a kernel before the centre, which is the first pixel of a block.
    first = (kernel.shape[0] // 2) % _BLOCK
    grow = (first, 1 - first)
    padded = jnp.pad(kernel, (grow, grow, (0, 0), (0, 0)))
    taps, channels = padded.shape[0] // _BLOCK, kernel.shape[3]
    blocks = padded.reshape(taps, _BLOCK, taps, _BLOCK, kernel.shape[2], channels)
    return blocks.transpose(0, 2, 1, 3, 4, 5).reshape(taps, taps, -1, channels)
