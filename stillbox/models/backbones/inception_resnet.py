"""Inception ResNet v2 (arXiv:1602.07261) with the maps of all layers aligned.

The original is `slim/nets/inception_resnet_v2.py` with `align_feature_maps`, and Keras's network
behind `object_detection/models/keras_models/inception_resnet_v2.py`: convolutions and poolings have
SAME padding, also those that the paper leaves without padding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.lowering.windows import Padding
from stillbox.models.layers.resampling import average_pool, max_pool
from stillbox.models.parts import BuildOptions, FeatureMap, Part, layers_in_use, widened
from stillbox.models.rematerialization import rematerialized

Config = schema.InceptionResNetV2 | schema.InceptionResNetV2BlockHead
"""What configures blocks: depth multiplier, least depth and hyperparameters."""
_Branch = tuple[tuple[str, int], ...]
"""Convolutions by place and kernel, as in slim's names, and depth before the multiplier."""

# Size, stride and depth of the convolutions in front of the blocks.
_FRONT = {
    "conv_1a": (3, 2, 32),
    "conv_2a": (3, 1, 32),
    "conv_2b": (3, 1, 64),
    "conv_3b": (1, 1, 80),
    "conv_4a": (3, 1, 192),
}


class _Mixed(NamedTuple):
    """Branches side by side, and a pooling beside them."""

    branches: tuple[_Branch, ...]
    pooled: int = 0
    """Depth of the 1x1 convolution behind a mean; 0: a maximum, strided like the branches."""


class _Residual(NamedTuple):
    """Branches whose joined outputs are projected, scaled, and added to the input."""

    branches: tuple[_Branch, ...]
    scale: float


_MIXED = {
    "mixed_5b": _Mixed(
        (
            (("1x1", 96),),
            (("0a_1x1", 48), ("0b_5x5", 64)),
            (("0a_1x1", 64), ("0b_3x3", 96), ("0c_3x3", 96)),
        ),
        64,
    ),
    "mixed_6a": _Mixed(
        ((("1a_3x3", 384),), (("0a_1x1", 256), ("0b_3x3", 256), ("1a_3x3", 384))),
    ),
    "mixed_7a": _Mixed(
        (
            (("0a_1x1", 256), ("1a_3x3", 384)),
            (("0a_1x1", 256), ("1a_3x3", 288)),
            (("0a_1x1", 256), ("0b_3x3", 288), ("1a_3x3", 320)),
        ),
    ),
}
_RESIDUAL = {
    "block35": _Residual(
        (
            (("1x1", 32),),
            (("0a_1x1", 32), ("0b_3x3", 32)),
            (("0a_1x1", 32), ("0b_3x3", 48), ("0c_3x3", 64)),
        ),
        0.17,
    ),
    "block17": _Residual(
        ((("1x1", 192),), (("0a_1x1", 128), ("0b_1x7", 160), ("0c_7x1", 192))),
        0.10,
    ),
    "block8": _Residual(
        ((("1x1", 192),), (("0a_1x1", 192), ("0b_1x3", 224), ("0c_3x1", 256))),
        0.20,
    ),
}


def branches_of(name: str) -> tuple[_Branch, ...]:
    """Returns the convolutions of each branch of a layer such as `mixed_5b` or `block35_1`."""
    if name not in _MIXED:
        return _RESIDUAL[name.partition("_")[0]].branches
    block = _MIXED[name]
    return (*block.branches, (("0b_1x1", block.pooled),)) if block.pooled else block.branches


@implements(schema.InceptionResNetV2)
class InceptionResNetV2Backbone(Part):
    """Convolutions `conv_1a` to `conv_4a`, `mixed_5b` and ten blocks, `mixed_6a` and twenty.

    With an output stride of 8, `mixed_6a` has no stride, and the blocks behind it are dilated.
    """

    def __init__(
        self, config: schema.InceptionResNetV2, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps = taps
        atrous = config.output_stride == 8
        channels, widths = 3, {}
        for name in built:
            layer: Conv2d | MixedBlock | ResidualBlock
            if name in _FRONT:
                size, stride, depth = _FRONT[name]
                width, arguments = _width(depth, config), options.layer_arguments()
                layer = Conv2d(channels, width, size, stride, config.conv, **arguments)
                channels = width
                setattr(self, name, layer)
            elif name in _MIXED:
                stride = 1 if atrous or name == "mixed_5b" else 2
                layer = MixedBlock(name, config, channels, options, stride=stride)
                channels = layer.channels
                setattr(self, name, layer)
            elif not name.startswith("pool"):
                dilation = 2 if atrous and name.startswith("block17") else 1
                layer = ResidualBlock(name, config, channels, options, dilation=dilation)
                setattr(self, name, layer)
            widths[name] = channels
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        outputs = {}
        for name in self.names:
            x = outputs[name] = self._layer(x, name, train=train)
        return tuple(outputs[tap] for tap in self.taps)

    def _layer(self, x: FeatureMap, name: str, *, train: bool) -> FeatureMap:
        if name.startswith("pool"):
            return max_pool(x, 3, 2)
        layer: Part = getattr(self, name)
        return layer(x, train=train)


class MixedBlock(Part):
    """Branches `branch_0`, `branch_1`, ... side by side; the last one reads a pooling.

    Args:
        name: selects the widths: that of a layer of the network.
        config: depth multiplier, least depth and hyperparameters.
        inputs: channels of the input.
        options: that all layers share.
        stride: of the last convolution of each branch, and of the pooling.
        padding: of those.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        inputs: int,
        options: BuildOptions,
        *,
        stride: int,
        padding: Padding = "same",
    ) -> None:
        block = _MIXED[name]
        self.average, self.stride, self.padding = bool(block.pooled), stride, padding
        self.channels = 0 if block.pooled else inputs
        self.branches = len(branches_of(name))
        for index, steps in enumerate(branches_of(name)):
            branch = Branch(steps, config, inputs, options, stride=stride, padding=padding)
            setattr(self, f"branch_{index}", branch)
            self.channels += branch.channels

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the size of a 3x3 pooling of the stride, `channels` deep."""
        pooled = (
            average_pool(x, 3)
            if self.average
            else max_pool(x, 3, self.stride, padding=self.padding)
        )
        sources = [x] * self.branches
        if self.average:
            sources[-1] = pooled
        outputs = [
            getattr(self, f"branch_{index}")(source, train=train)
            for index, source in enumerate(sources)
        ]
        return jnp.concatenate(outputs if self.average else [*outputs, pooled], axis=-1)


class ResidualBlock(Part):
    """Branches `branch_0`, ... side by side, `up` to the input's channels, scaled and added.

    Args:
        name: selects widths and scale: that of a layer of the network, such as `block35_1`.
        config: depth multiplier, least depth and hyperparameters.
        inputs: channels of input and output.
        options: that all layers share.
        dilation: of the branches' kernels.
        last: the sum is neither scaled nor activated.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        inputs: int,
        options: BuildOptions,
        *,
        dilation: int = 1,
        last: bool = False,
    ) -> None:
        self.branches, channels = len(branches_of(name)), 0
        for index, steps in enumerate(branches_of(name)):
            branch = Branch(steps, config, inputs, options, dilation=dilation)
            setattr(self, f"branch_{index}", branch)
            channels += branch.channels
        arguments = options.layer_arguments()
        self.up = Conv2d(channels, inputs, 1, 1, config.conv.without_norm(), **arguments)
        self.scale = 1.0 if last else _RESIDUAL[name.partition("_")[0]].scale
        self.activation = "none" if last else config.conv.activation

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the same shape."""
        branches = (getattr(self, f"branch_{index}") for index in range(self.branches))
        joined = jnp.concatenate([branch(x, train=train) for branch in branches], axis=-1)
        added = (self.up(joined, train=train) * self.scale).astype(x.dtype)
        return ACTIVATIONS[self.activation](x + added)


class Branch(Part):
    """Convolutions one after the other, such as `conv_0a_1x1`; `stride` is that of a `1a`."""

    def __init__(
        self,
        steps: _Branch,
        config: Config,
        inputs: int,
        options: BuildOptions,
        *,
        stride: int = 1,
        padding: Padding = "same",
        dilation: int = 1,
    ) -> None:
        self.layers = tuple(f"conv_{name}" for name, _ in steps)
        for layer, (name, depth) in zip(self.layers, steps, strict=True):
            rows, columns = map(int, name.rpartition("_")[2].split("x"))
            strided, width = name.startswith("1a"), _width(depth, config)
            arguments = options.layer_arguments()
            if strided:
                arguments["padding"] = padding
            own, size = stride if strided else 1, (rows, columns)
            conv = Conv2d(inputs, width, size, own, config.conv, dilation=dilation, **arguments)
            setattr(self, layer, conv)
            inputs = width
        self.channels = inputs

    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the size of the block's output."""
        for layer in self.layers:
            x = getattr(self, layer)(x, train=train)
        return x


def _width(depth: int, config: Config) -> int:
    return widened(depth, config.depth_multiplier, config.min_depth)
