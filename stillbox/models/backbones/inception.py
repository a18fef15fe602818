"""Inception v2 (arXiv:1502.03167) and v3 (arXiv:1512.00567).

The originals are `slim/nets/inception_v2.py` and `slim/nets/inception_v3.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, SeparableConv2d
from stillbox.models.layers.lowering.windows import Padding
from stillbox.models.layers.resampling import average_pool, max_pool
from stillbox.models.parts import BuildOptions, FeatureMap, Part, layers_in_use, widened
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
    """Channels of the convolutions of each branch, a 1x1 and then 3x3."""
    pooled: int = 0
    """Channels of the 1x1 convolution behind the pooling; 0: none, and the block has stride 2."""
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


class _InceptionBackbone(Part):
    """Layers one after the other, some of which are poolings; subclasses build them.

    `padding` is that of the poolings.
    """

    padding: ClassVar[Padding] = "same"
    names: tuple[str, ...]
    taps: tuple[str, ...]

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        outputs = {}
        for name in self.names:
            x = outputs[name] = self._layer(x, name, train=train)
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _layer(self, x: FeatureMap, name: str, *, train: bool) -> FeatureMap:
        if name.startswith("pool"):
            return max_pool(x, 3, 2, padding=self.padding)
        layer: Part = getattr(self, name)
        return layer(x, train=train)


@implements(schema.InceptionV2)
class InceptionV2Backbone(_InceptionBackbone):
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


def _run_branches(block: Part, inputs: Sequence[FeatureMap], *, train: bool) -> FeatureMap:
    """Returns the outputs of `branch_0`, `branch_1`, ... of a block, one input each, together."""
    outputs = [
        getattr(block, f"branch_{index}")(source, train=train)
        for index, source in enumerate(inputs)
    ]
    return jnp.concatenate(outputs, axis=-1)


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
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), channels]`."""
        pooled = average_pool(x, 3) if self.average else max_pool(x, 3, self.stride)
        return _run_branches(self, [x] * (self.branches - 1) + [pooled], train=train)


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

    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
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


_Step = tuple[str, int]
"""Place and kernel of a convolution, as in slim's names, and its depth before the multiplier."""
_V3Branch = tuple[_Step, ...]

# Size, stride, depth and padding of the convolutions in front of the blocks.
_FRONT = {
    "conv_1a": (3, 2, 32, "valid"),
    "conv_2a": (3, 1, 32, "valid"),
    "conv_2b": (3, 1, 64, "same"),
    "conv_3b": (1, 1, 80, "valid"),
    "conv_4a": (3, 1, 192, "valid"),
}


class _V3Block(NamedTuple):
    branches: tuple[_V3Branch, ...]
    pooled: int = 0
    """Depth of the 1x1 convolution behind a mean; 0: a strided maximum instead of both."""


def _five(pooled: int) -> _V3Block:
    """A block whose branches see 1, 5 and 5 pixels."""
    return _V3Block(
        (
            (("0a_1x1", 64),),
            (("0a_1x1", 48), ("0b_5x5", 64)),
            (("0a_1x1", 64), ("0b_3x3", 96), ("0c_3x3", 96)),
        ),
        pooled,
    )


def _six(inner: int) -> _V3Block:
    """A block whose branches see 1, 7 and 13 pixels by rows and columns of kernels."""
    long = (("0b_7x1", inner), ("0c_1x7", inner), ("0d_7x1", inner), ("0e_1x7", 192))
    return _V3Block(
        (
            (("0a_1x1", 192),),
            (("0a_1x1", inner), ("0b_1x7", inner), ("0c_7x1", 192)),
            (("0a_1x1", inner), *long),
        ),
        192,
    )


_SEVEN = _V3Block(
    (
        (("0a_1x1", 320),),
        (("0a_1x1", 384), ("0b_1x3", 384), ("0c_3x1", 384)),
        (("0a_1x1", 448), ("0b_3x3", 384), ("0c_1x3", 384), ("0d_3x1", 384)),
    ),
    192,
)
_V3_BLOCKS = {
    "mixed_5b": _five(32),
    "mixed_5c": _five(64),
    "mixed_5d": _five(64),
    "mixed_6a": _V3Block(
        ((("1a_3x3", 384),), (("0a_1x1", 64), ("0b_3x3", 96), ("1a_3x3", 96))),
    ),
    "mixed_6b": _six(128),
    "mixed_6c": _six(160),
    "mixed_6d": _six(160),
    "mixed_6e": _six(192),
    "mixed_7a": _V3Block(
        (
            (("0a_1x1", 192), ("1a_3x3", 320)),
            (("0a_1x1", 192), ("0b_1x7", 192), ("0c_7x1", 192), ("1a_3x3", 192)),
        ),
    ),
    "mixed_7b": _SEVEN,
    "mixed_7c": _SEVEN,
}


@implements(schema.InceptionV3)
class InceptionV3Backbone(_InceptionBackbone):
    """Convolutions `conv_1a` to `conv_4a` and blocks `mixed_5b` to `mixed_7c`."""

    padding = "valid"

    def __init__(
        self, config: schema.InceptionV3, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps = taps
        channels, widths = 3, {}
        for name in built:
            if name in _V3_BLOCKS:
                block = InceptionV3Block(name, config, channels, options)
                setattr(self, name, block)
                channels = block.channels
            elif name in _FRONT:
                size, stride, depth, padding = _FRONT[name]
                layers = options.layer_arguments() | {"padding": padding}
                width = _v3_width(depth, config)
                setattr(self, name, Conv2d(channels, width, size, stride, config.conv, **layers))
                channels = width
            widths[name] = channels
        self.channels = tuple(widths[tap] for tap in taps)


class InceptionV3Block(Part):
    """Branches `branch_0`, `branch_1`, ... side by side; the last one reads a pooling.

    `name` selects the widths: that of a layer of the backbone.
    """

    def __init__(
        self, name: str, config: schema.InceptionV3, inputs: int, options: BuildOptions
    ) -> None:
        block = _V3_BLOCKS[name]
        behind = (("0b_1x1", block.pooled),) if block.pooled else ()
        self.strided, self.branches = not block.pooled, len(block.branches) + 1
        self.channels = 0
        for index, steps in enumerate((*block.branches, behind)):
            branch = InceptionV3Branch(steps, config, inputs, options)
            setattr(self, f"branch_{index}", branch)
            self.channels += branch.channels

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the same size, or to the size of a 3x3 maximum of stride 2."""
        pooled = max_pool(x, 3, 2, padding="valid") if self.strided else average_pool(x, 3)
        return _run_branches(self, [x] * (self.branches - 1) + [pooled], train=train)


class InceptionV3Branch(Part):
    """Convolutions one after the other, such as `conv_0a_1x1`; none of them in some.

    A 3x1 at the end stands beside the 1x3 in front of it.
    """

    def __init__(
        self,
        steps: _V3Branch,
        config: schema.InceptionV3,
        inputs: int,
        options: BuildOptions,
    ) -> None:
        self.layers = tuple(f"conv_{name}" for name, _ in steps)
        self.forked = bool(steps) and steps[-1][0].endswith("3x1")
        self.channels = inputs
        for layer, (name, depth) in zip(self.layers, steps, strict=True):
            place, _, kernel = name.partition("_")
            rows, columns = map(int, kernel.split("x"))
            strided, width = place == "1a", _v3_width(depth, config)
            arguments = options.layer_arguments() | {"padding": "valid" if strided else "same"}
            stride = 2 if strided else 1
            part = Conv2d(inputs, width, (rows, columns), stride, config.conv, **arguments)
            setattr(self, layer, part)
            beside = self.forked and layer == self.layers[-2]
            inputs = inputs if beside else width
            self.channels = width
        if self.forked:
            self.channels *= 2

    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the size of the block's output."""
        in_row = self.layers[:-2] if self.forked else self.layers
        for layer in in_row:
            x = getattr(self, layer)(x, train=train)
        if not self.forked:
            return x
        beside = [getattr(self, layer)(x, train=train) for layer in self.layers[-2:]]
        return jnp.concatenate(beside, axis=-1)


def _v3_width(depth: int, config: schema.InceptionV3) -> int:
    return widened(depth, config.depth_multiplier, config.min_depth)
