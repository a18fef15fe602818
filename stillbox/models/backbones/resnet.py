"""ResNet with the stride inside its first blocks (arXiv:1512.03385; SSD ResNet-34 fact sheet 2)."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.models.layers import Conv2d
from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.lowering import max_pool
from stillbox.models.layers.space_to_depth import SpaceToDepthConv2d
from stillbox.models.parts import BuildOptions, Part, layers_in_use

_STEM_CHANNELS = 64
# Blocks of the four groups; up to 34 layers they are basic, above they are bottlenecks.
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
# 14 and 26 are the bottleneck siblings of 10 and 18.
_BASIC = (10, 18, 34)
_EXPANSION = 4


class ResNet(Part):
    """The network up to the last group that anything reads or that the description asks for.

    `stem` is the 7x7 convolution, `group_{g}` the groups 1 to 4 of blocks `block_{b}`.

    Args:
        config: depth, strides and hyperparameters.
        taps: names of the layers whose outputs are wanted.
        options: what all layers of the detector share.

    Raises:
        UserError: a tap is no layer of this network.
    """

    def __init__(self, config: schema.ResNet, taps: tuple[str, ...], options: BuildOptions) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps, self.pool_padding = taps, config.pool_padding
        stem = SpaceToDepthConv2d if config.space_to_depth_stem else Conv2d
        # Its padding is even at all ends, whatever the framework.
        layers = options.layer_arguments() | {"padding": "symmetric"}
        self.stem = stem(3, _STEM_CHANNELS, 7, 2, config.conv, **layers)
        channels = _STEM_CHANNELS
        widths = {"stem": channels}
        for index, name in enumerate(built[1:]):
            group = ResNetGroup(config, channels, index, options)
            setattr(self, name, group)
            channels = widths[name] = group.channels
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(self, x: jax.Array, *, train: bool) -> tuple[jax.Array, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        outputs = {}
        for name in self.names:
            x = outputs[name] = getattr(self, name)(x, train=train)
            if name == "stem":
                x = max_pool(x, 3, 2, padding=self.pool_padding)
        return tuple(outputs[tap] for tap in self.taps)


class ResNetGroup(Part):
    """Blocks `block_1`, `block_2`, ... of one width; the first of them strides.

    Args:
        config: depth, strides and hyperparameters.
        inputs: channels of the input.
        index: of the group, from 0.
        options: what all layers of the detector share.
    """

    def __init__(
        self, config: schema.ResNet, inputs: int, index: int, options: BuildOptions
    ) -> None:
        block = BasicBlock if config.depth in _BASIC else BottleneckBlock
        width, stride = _STEM_CHANNELS * 2**index, config.group_strides[index]
        self.blocks = tuple(
            f"block_{number}" for number in range(1, _BLOCKS[config.depth][index] + 1)
        )
        for name in self.blocks:
            made = block(config, inputs, width, stride, options)
            setattr(self, name, made)
            inputs, stride = made.channels, 1
        self.channels = inputs

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), channels]`."""
        for name in self.blocks:
            x = getattr(self, name)(x, train=train)
        return x


class Block(Part):
    """Convolutions `conv_1`, `conv_2`, ... beside a shortcut, and the activated sum of both.

    `shortcut` is a 1x1 convolution; it exists where channels or stride change.

    Args:
        config: hyperparameters.
        inputs: channels of the input.
        channels: channels of the output.
        stride: of the shortcut.
        convolutions: size, channels and stride of each convolution.
        options: what all layers of the detector share.
    """

    def __init__(
        self,
        config: schema.ResNet,
        inputs: int,
        channels: int,
        stride: int,
        convolutions: tuple[tuple[int, int, int], ...],
        options: BuildOptions,
    ) -> None:
        layers = options.layer_arguments() | {"padding": "symmetric"}
        linear = replace(config.conv, activation="none")
        if inputs != channels or stride > 1:
            self.shortcut = Conv2d(inputs, channels, 1, stride, linear, **layers)
        self.names = tuple(f"conv_{number}" for number in range(1, len(convolutions) + 1))
        for name, (size, depth, own_stride) in zip(self.names, convolutions, strict=True):
            hyperparams = linear if name == self.names[-1] else config.conv
            setattr(self, name, Conv2d(inputs, depth, size, own_stride, hyperparams, **layers))
            inputs = depth
        last = getattr(self, self.names[-1])
        if config.zero_last_scale and config.conv.batch_norm and config.conv.batch_norm.scale:
            last.norm.scale[...] = jnp.zeros(channels, jnp.float32)
        self.activation, self.channels = config.conv.activation, channels

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), channels]`."""
        shortcut = self.shortcut(x, train=train) if hasattr(self, "shortcut") else x
        for name in self.names:
            x = getattr(self, name)(x, train=train)
        return ACTIVATIONS[self.activation](shortcut + x)


class BasicBlock(Block):
    """Two 3x3 convolutions of one width."""

    def __init__(
        self, config: schema.ResNet, inputs: int, width: int, stride: int, options: BuildOptions
    ) -> None:
        convolutions = ((3, width, stride), (3, width, 1))
        super().__init__(config, inputs, width, stride, convolutions, options)


class BottleneckBlock(Block):
    """A 1x1, the 3x3 that strides, and a 1x1 to four times the width."""

    def __init__(
        self, config: schema.ResNet, inputs: int, width: int, stride: int, options: BuildOptions
    ) -> None:
        channels = width * _EXPANSION
        convolutions = ((1, width, 1), (3, width, stride), (1, channels, 1))
        super().__init__(config, inputs, channels, stride, convolutions, options)
