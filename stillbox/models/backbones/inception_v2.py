"""Inception v2 (arXiv:1502.03167; `slim/nets/inception_v2.py`)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, SeparableConv2d
from stillbox.models.layers.pooling import average_pool, max_pool
from stillbox.models.parts import BuildOptions, Part, layers_in_use, widened
from stillbox.models.rematerialization import rematerialized

Config = schema.InceptionV2 | schema.InceptionV2BlockHead
"""What configures blocks: depth multiplier, least depth and hyperparameters."""

# Depths before the multiplier, and the filters of each colour in the first convolution at most.
_DEPTHS = {"conv_1a": 64, "conv_2b": 64, "conv_2c": 192}
_MOST_FILTERS = 8
# slim draws these kernels with deviations of its own, whatever the hyperparameters say.
_FIRST, _IN_FRONT, _BEHIND_POOLING = 1.0, 0.09, 0.1


class _Block(NamedTuple):
    """Depths of a block before the multiplier."""

    branches: tuple[tuple[int, ...], ...]
    """Of the convolutions of each branch, a 1x1 and then 3x3."""
    pooled: int = 0
    """Of the 1x1 convolution behind the pooling; 0: there is none, and the block has stride 2."""
    average: bool = False
    """The pooling is a mean instead of a maximum."""


_BLOCKS = {
    "mixed_3b": _Block(((64,), (64, 64), (64, 96, 96)), 32, average=True),
    "mixed_3c": _Block(((64,), (64, 96), (64, 96, 96)), 64, average=True),
    "mixed_4a": _Block(((128, 160), (64, 96, 96))),
    "mixed_4b": _Block(((224,), (64, 96), (96, 128, 128)), 128, average=True),
    "mixed_4c": _Block(((192,), (96, 128), (96, 128, 128)), 128, average=True),
    "mixed_4d": _Block(((160,), (128, 160), (128, 160, 160)), 96, average=True),
    "mixed_4e": _Block(((96,), (128, 192), (160, 192, 192)), 96, average=True),
    "mixed_5a": _Block(((128, 192), (192, 256, 256))),
    "mixed_5b": _Block(((352,), (192, 320), (160, 224, 224)), 128, average=True),
    "mixed_5c": _Block(((352,), (192, 320), (192, 224, 224)), 128),
}


@implements(schema.InceptionV2)
class InceptionV2Backbone(Part):
    """Convolutions `conv_1a`, `conv_2b`, `conv_2c` and blocks `mixed_3b` to `mixed_5c`."""

    def __init__(
        self, config: schema.InceptionV2, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps = taps
        channels, widths = 3, {}
        for name in built:
            if name in _BLOCKS:
                block = InceptionBlock(name, config, channels, options)
                setattr(self, name, block)
                channels = block.channels
            elif name in _DEPTHS:
                setattr(self, name, _convolution(name, config, channels, options))
                channels = _width(_DEPTHS[name], config)
            widths[name] = channels
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        outputs = {}
        for name in self.names:
            x = outputs[name] = self._layer(x, name, train=train)
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _layer(self, x: jax.Array, name: str, *, train: bool) -> jax.Array:
        if name.startswith("pool"):
            return max_pool(x, 3, 2)
        layer: Part = getattr(self, name)
        return layer(x, train=train)


class InceptionBlock(Part):
    """Branches `branch_0`, `branch_1`, ... side by side; the last one reads a pooling.

    `name` selects the widths: that of a layer of the backbone.
    """

    def __init__(self, name: str, config: Config, inputs: int, options: BuildOptions) -> None:
        block = _BLOCKS[name]
        self.average, self.stride = block.average, 1 if block.pooled else 2
        self.channels = 0
        behind = (block.pooled,) if block.pooled else ()
        self.branches = len(block.branches) + 1
        for index, depths in enumerate((*block.branches, behind)):
            pooled = index == len(block.branches)
            names = ("0b_1x1",)[: len(depths)] if pooled else _names(len(depths), self.stride)
            branch = _Branch(names, depths, config, inputs, options)
            setattr(self, f"branch_{index}", branch)
            self.channels += branch.channels

    @rematerialized
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), channels]`."""
        pooled = average_pool(x, 3) if self.average else max_pool(x, 3, self.stride)
        inputs = [x] * (self.branches - 1) + [pooled]
        outputs = [
            getattr(self, f"branch_{index}")(source, train=train)
            for index, source in enumerate(inputs)
        ]
        return jnp.concatenate(outputs, axis=-1)


class _Branch(Part):
    """Convolutions one after the other, such as `conv_0a_1x1`; none of them in some."""

    def __init__(
        self,
        names: Sequence[str],
        depths: Sequence[int],
        config: Config,
        inputs: int,
        options: BuildOptions,
    ) -> None:
        self.layers = tuple(f"conv_{name}" for name in names)
        for index, (name, depth) in enumerate(zip(names, depths, strict=True)):
            conv, width = config.conv, _width(depth, config)
            if name == "0b_1x1":
                conv = _drawn(conv, _BEHIND_POOLING)
            elif index == 0 and len(names) > 1:
                conv = _drawn(conv, _IN_FRONT)
            size, stride = int(name[-1]), 2 if name.startswith("1a") else 1
            layer = Conv2d(inputs, width, size, stride, conv, **options.layer_arguments())
            setattr(self, f"conv_{name}", layer)
            inputs = width
        self.channels = inputs

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        for name in self.layers:
            x = getattr(self, name)(x, train=train)
        return x


def _names(layers: int, stride: int) -> tuple[str, ...]:
    """Returns slim's names of a branch's convolutions; one of stride 2 is the last."""
    if stride == 1:
        return ("0a_1x1", "0b_3x3", "0c_3x3")[:layers]
    return (*("0a_1x1", "0b_3x3")[: layers - 1], "1a_3x3")


def _width(depth: int, config: Config) -> int:
    return widened(depth, config.depth_multiplier, config.min_depth)


def _drawn(conv: schema.ConvHyperparams, stddev: float) -> schema.ConvHyperparams:
    return replace(conv, initializer=schema.TruncatedNormal(stddev=stddev))


def _convolution(
    name: str, config: schema.InceptionV2, inputs: int, options: BuildOptions
) -> SeparableConv2d | Conv2d:
    """Returns a convolution in front of the blocks."""
    width, layers = _width(_DEPTHS[name], config), options.layer_arguments()
    if name == "conv_1a":
        filters = min(width // inputs, _MOST_FILTERS)
        conv = _drawn(config.conv, _FIRST)
        return SeparableConv2d(inputs, width, 7, 2, conv, multiplier=filters, **layers)
    if name == "conv_2b":
        return Conv2d(inputs, width, 1, 1, _drawn(config.conv, _BEHIND_POOLING), **layers)
    return Conv2d(inputs, width, 3, 1, config.conv, **layers)
