"""MobileNet v1 (arXiv:1704.04861) and v2 (arXiv:1801.04381).

The originals are `slim/nets/mobilenet_v1.py` and `slim/nets/mobilenet`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.layers.lowering.windows import padding_of
from stillbox.models.parts import (
    BuildOptions,
    FeatureMap,
    Part,
    divided,
    layers_in_use,
    make_divisible,
    rounded,
)
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized

_ROOT_CHANNELS = 32
# Stride and channels of each depthwise/pointwise pair before the depth multiplier; the channels
# of the last two are configured.
_PAIRS = (
    (1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), (1, 512),
    (1, 512), (1, 512), (1, 512), (1, 512), (2, None), (1, None),
)  # fmt: skip


@implements(schema.MobileNetV1)
class MobileNetV1Backbone(Part):
    """Layers `conv_0`, `conv_1_depthwise`, `conv_1_pointwise`, ... `conv_13_pointwise`."""

    def __init__(
        self, config: schema.MobileNetV1, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        built, computed = layers_in_use(config, taps)
        layers = dict(zip(built, _v1_layers(config, options), strict=False))
        self.layers = Named("{}", layers)
        self.blocks = tuple(divided(computed, (1, *[2] * len(_PAIRS))))
        self.taps, self.channels = taps, tuple(layers[tap].channels for tap in taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, C]` to the taps, in their order."""
        outputs: dict[str, FeatureMap] = {}
        for names in self.blocks:
            outputs |= self._block(x, names, train=train)
            x = outputs[names[-1]]
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _block(
        self, x: FeatureMap, names: tuple[str, ...], *, train: bool
    ) -> dict[str, FeatureMap]:
        return {name: (x := self.layers[name](x, train=train)) for name in names}


def _v1_layers(
    config: schema.MobileNetV1, options: BuildOptions
) -> Iterator[Conv2d | DepthwiseConv2d]:
    """Yields all layers in their order."""

    def width(depth: int) -> int:
        return max(int(depth * config.depth_multiplier), config.min_depth)

    def inner(depth: int) -> int:
        return int(depth * config.inner_multiplier)

    layers = options.layer_arguments() | {"padding": padding_of(config.explicit_padding)}
    channels, last = width(inner(_ROOT_CHANNELS)), iter(config.last_depths)
    yield Conv2d(options.image_channels, channels, 3, 2, config.conv, **layers)
    for stride, depth in _PAIRS:
        yield DepthwiseConv2d(channels, 3, stride, config.conv, **layers)
        wide = width(inner(depth) if depth else next(last))
        yield Conv2d(channels, wide, 1, 1, config.conv, **layers)
        channels = wide


# Expansion, stride and channels of each block before the depth multiplier (table 2 of the paper).
_BLOCKS = (
    (1, 1, 16), (6, 2, 24), (6, 1, 24), (6, 2, 32), (6, 1, 32), (6, 1, 32), (6, 2, 64), (6, 1, 64),
    (6, 1, 64), (6, 1, 64), (6, 1, 96), (6, 1, 96), (6, 1, 96), (6, 2, 160), (6, 1, 160),
    (6, 1, 160), (6, 1, 320),
)  # fmt: skip


@implements(schema.MobileNetV2)
class MobileNetV2Backbone(Part):
    """Layers `conv_0`, `block_{k}_expand`, `block_{k}_depthwise`, `block_{k}_project`, `conv_1`.

    k goes from 0 to 16; block 0 has no expansion. A tap `block_{k}` is the sum that ends block k.
    """

    def __init__(
        self, config: schema.MobileNetV2, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        built, computed = layers_in_use(config, taps)
        layers = dict(zip(built, _v2_layers(config, options), strict=False))
        widths = dict(zip(layers, _widths(layers.values()), strict=True))
        self.layers = Named("{}", layers)
        self.blocks = tuple(divided(computed, (1, 3, *[4] * (len(_BLOCKS) - 1), 1)))
        sums = {name: options.rounding() for name in _residual_blocks(widths, config)}
        self.sums = Named("{}_sum", sums)
        self.taps, self.channels = taps, tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, C]` to the taps, in their order."""
        outputs: dict[str, FeatureMap] = {}
        for names in self.blocks:
            outputs |= self._block(x, names, train=train)
            x = outputs[names[-1]]
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _block(
        self, x: FeatureMap, names: tuple[str, ...], *, train: bool
    ) -> dict[str, FeatureMap]:
        block_input, outputs = x, {}
        for name in names:
            if (layer := self.layers[name]) is not None:
                x = layer(x, train=train)
            elif name in self.sums:
                with jax.named_scope(f"{name}_sum"):
                    x = rounded(self.sums[name], x + block_input, train=train)
            outputs[name] = x
        return outputs


def _v2_layers(
    config: schema.MobileNetV2, options: BuildOptions
) -> Iterator[Conv2d | DepthwiseConv2d | None]:
    """Yields all layers in their order, and None at the end of each block."""
    layers = options.layer_arguments() | {"padding": padding_of(config.explicit_padding)}
    linear = replace(config.conv, activation="none")
    filtered = config.conv
    if config.depthwise_initializer is not None:
        filtered = replace(filtered, initializer=config.depthwise_initializer)
    channels = _width(_ROOT_CHANNELS * config.depth_multiplier, config)
    yield Conv2d(options.image_channels, channels, 3, 2, config.conv, **layers)
    for expansion, stride, depth in _BLOCKS:
        wide = channels * expansion
        if expansion > 1:
            wide = make_divisible(wide) if config.channels == "slim" else wide
            yield Conv2d(channels, wide, 1, 1, config.conv, **layers)
        yield DepthwiseConv2d(wide, 3, stride, filtered, **layers)
        channels = _width(_bottleneck(depth, config), config)
        yield Conv2d(wide, channels, 1, 1, linear, **layers)
        yield None
    # In Keras's network a multiplier above 1 leaves the last convolution alone.
    factor = config.depth_multiplier
    factor = min(factor, 1.0) if config.channels == "keras" else factor
    last = _width(config.last_depth * factor, config)
    yield Conv2d(channels, last, 1, 1, config.conv, **layers)


def _widths(layers: Iterable[Conv2d | DepthwiseConv2d | None]) -> Iterator[int]:
    """Yields the channels after each layer."""
    channels = 0
    for layer in layers:
        channels = channels if layer is None else layer.channels
        yield channels


def _width(channels: float, config: schema.MobileNetV2) -> int:
    """Returns a whole number of channels, of at least `min_depth`."""
    if config.channels == "keras":
        return max(make_divisible(channels), config.min_depth)
    return make_divisible(channels, config.min_depth)


def _bottleneck(depth: int, config: schema.MobileNetV2) -> float:
    """Returns the channels that a block asks for; Keras rounds them down first."""
    scaled = depth * config.depth_multiplier
    return int(scaled) if config.channels == "keras" else scaled


def _residual_blocks(widths: Mapping[str, int], config: schema.MobileNetV2) -> tuple[str, ...]:
    """Returns the blocks that add their input to their output: stride 1 and equal channels.

    Keras compares with the channels that it asked for, before `min_depth`.
    """
    before, residual = "conv_0", []
    for block, (_, stride, depth) in enumerate(_BLOCKS):
        name = f"block_{block}"
        if stride == 1 and name in widths:
            keras = config.channels == "keras"
            width = make_divisible(_bottleneck(depth, config)) if keras else widths[name]
            if widths[before] == width:
                residual.append(name)
        before = name
    return tuple(residual)
