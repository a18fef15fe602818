"""ResNet with the stride inside its first blocks (arXiv:1512.03385).

SpineNet has the same residual blocks and groups of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d
from stillbox.models.layers.conv import SpaceToDepthConv2d
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.lowering.windows import Padding, padding_of
from stillbox.models.layers.resampling import max_pool
from stillbox.models.layers.stochastic import drop_block, drop_connect, fold_key
from stillbox.models.parts import BuildOptions, FeatureMap, Part, layers_in_use
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized

BlockKind = Literal["residual", "bottleneck"]

EXPANSION = 4
"""Output channels of a bottleneck over its width."""


@dataclass(frozen=True)
class BlockOptions:
    """Options that all blocks of a group share."""

    conv: schema.ConvHyperparams
    """Hyperparameters; its activation also follows the sum."""
    build: BuildOptions
    zero_last_scale: bool = False
    """Start as an identity."""
    drop_connect_rate: float = 0.0
    """Probability of dropping all but the shortcut in training."""
    drop_block: schema.DropBlock | None = None
    """Applied after every convolution and on the shortcut."""
    padding: Padding = "symmetric"
    """The padding of strided convolutions."""


def output_channels(kind: BlockKind, width: int) -> int:
    """Returns the channels that a block of a width makes."""
    return width * EXPANSION if kind == "bottleneck" else width


class BlockGroup(Part):
    """A sequence of blocks `block_1`, `block_2`, ..., each with the `channels` of its output."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        numbered = dict(enumerate(blocks, start=1))
        self.blocks = Named("block_{}", numbered)
        self.channels: int = numbered[len(numbered)].channels

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), channels]`."""
        for number, block in enumerate(self.blocks.values()):
            x = block(x, train=train, dropout_key=fold_key(dropout_key, number))
        return x


def residual_group(
    kind: BlockKind,
    inputs: int,
    width: int,
    repeats: int,
    options: BlockOptions,
    *,
    stride: int = 1,
    project: bool = False,
) -> BlockGroup:
    """Returns `repeats` blocks of one width; `stride` and `project` are for the first."""
    first = Block(kind, inputs, width, stride, options, project=project)
    others = (Block(kind, first.channels, width, 1, options) for _ in range(1, repeats))
    return BlockGroup((first, *others))


class Block(Part):
    """Convolutions `conv_1`, `conv_2`, ... beside a shortcut, and the activated sum of both.

    A residual block has two 3x3 convolutions of one width, a bottleneck a 1x1, a 3x3 and a 1x1 to
    four times the width; the first 3x3 strides. `shortcut` is a 1x1 convolution; it exists if
    channels or stride change, or if `project` is set.
    """

    def __init__(
        self,
        kind: BlockKind,
        inputs: int,
        width: int,
        stride: int,
        options: BlockOptions,
        *,
        project: bool = False,
    ) -> None:
        conv, self.channels = options.conv, output_channels(kind, width)
        layers = options.build.layer_arguments() | {"padding": options.padding}
        linear = replace(conv, activation="none")
        shortcut = None
        if project or inputs != self.channels or stride > 1:
            shortcut = Conv2d(inputs, self.channels, 1, stride, linear, **layers)
        self.shortcut = shortcut
        steps, convolutions = _convolutions(kind, width, stride), {}
        for number, (size, depth, own_stride) in enumerate(steps, start=1):
            hyperparams = linear if number == len(steps) else conv
            layer = Conv2d(inputs, depth, size, own_stride, hyperparams, **layers)
            convolutions[number], inputs = layer, depth
        self.convolutions = Named("conv_{}", convolutions)
        if options.zero_last_scale and layer.norm is not None and layer.norm.scale is not None:
            layer.norm.scale[...] = jnp.zeros(self.channels, jnp.float32)
        self.activation, self.drop_block = conv.activation, options.drop_block
        self.drop_connect_rate = options.drop_connect_rate

    @rematerialized
    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), channels]`."""

        def drop(x: FeatureMap, number: int) -> FeatureMap:
            if not train or self.drop_block is None:
                return x
            return drop_block(x, self.drop_block, fold_key(dropout_key, number))

        shortcut = drop(x if self.shortcut is None else self.shortcut(x, train=train), 0)
        for number, convolution in self.convolutions.items():
            x = drop(convolution(x, train=train), number)
        if train and self.drop_connect_rate:
            key = fold_key(dropout_key, len(self.convolutions) + 1)
            x = drop_connect(x, self.drop_connect_rate, key)
        return ACTIVATIONS[self.activation](shortcut + x)


def _convolutions(kind: BlockKind, width: int, stride: int) -> tuple[tuple[int, int, int], ...]:
    """Returns size, channels and stride of each convolution."""
    if kind == "residual":
        return (3, width, stride), (3, width, 1)
    return (1, width, 1), (3, width, stride), (1, width * EXPANSION, 1)


_STEM_CHANNELS = 64
# Blocks of the four groups: basic ones for the depths in `_BASIC`, otherwise bottlenecks.
_BLOCKS = {
    10: (1, 1, 1, 1),
    14: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    26: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_BASIC = (10, 18, 34)
# Levels of the groups; the drop connect rate grows in proportion.
_FIRST_LEVEL, _LAST_LEVEL = 2, 5


@implements(schema.ResNet)
class ResNetBackbone(Part):
    """The 7x7 convolution `stem` and the groups `group_1` to `group_4` of blocks `block_{b}`."""

    def __init__(self, config: schema.ResNet, taps: tuple[str, ...], options: BuildOptions) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps, self.pool_padding = taps, config.pool_padding
        stem = SpaceToDepthConv2d if config.space_to_depth_stem else Conv2d
        layers = options.layer_arguments() | {"padding": padding_of(config.explicit_padding)}
        self.stem = stem(options.image_channels, _STEM_CHANNELS, 7, 2, config.conv, **layers)
        channels = _STEM_CHANNELS
        widths, groups = {"stem": channels}, {}
        for index, name in enumerate(built[1:]):
            groups[name] = _group(config, channels, index, options)
            channels = widths[name] = groups[name].channels
        self.groups = Named("{}", groups)
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, C]` to the taps, in their order."""
        stem, x = self._halve_twice(x, train=train)
        outputs = {"stem": stem}
        for number, name in enumerate(self.names[1:], start=1):
            key = fold_key(dropout_key, number)
            x = outputs[name] = self.groups[name](x, train=train, dropout_key=key)
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _halve_twice(self, x: FeatureMap, *, train: bool) -> tuple[FeatureMap, FeatureMap]:
        stem = self.stem(x, train=train)
        return stem, max_pool(stem, 3, 2, padding=self.pool_padding)


def _group(config: schema.ResNet, inputs: int, index: int, options: BuildOptions) -> BlockGroup:
    """Returns group `index`, counted from 0."""
    shared = BlockOptions(
        conv=config.conv,
        build=options,
        zero_last_scale=config.zero_last_scale,
        drop_connect_rate=config.drop_connect_rate * (index + _FIRST_LEVEL) / _LAST_LEVEL,
        drop_block=config.drop_block,
        padding=padding_of(config.explicit_padding),
    )
    return residual_group(
        "residual" if config.depth in _BASIC else "bottleneck",
        inputs,
        _STEM_CHANNELS * 2**index,
        _BLOCKS[config.depth][index],
        shared,
        stride=config.group_strides[index],
        project=config.project_first_block,
    )
