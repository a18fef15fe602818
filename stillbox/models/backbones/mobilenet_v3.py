"""MobileNet v3 (arXiv:1905.02244), and MobileNets for Edge TPUs and for several devices.

The originals are `slim/nets/mobilenet` and, for several devices (arXiv:2008.08178),
`official/vision/modeling/backbones/mobilenet.py` of tensorflow/models.

Their networks consist of inverted residuals (arXiv:1801.04381) and other blocks that architecture
search found; MobileNet v2 and MobileDet use them too. A block widens its input, filters it and
narrows it again. In an inverted residual a depthwise convolution filters; in a fused one the
widening convolution does (arXiv:2004.14525, 3.2.1); in a Tucker block a full convolution between
two 1x1 of few channels (3.2.2).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax

from stillbox.experiment import schema
from stillbox.experiment.schema.layers import Activation
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.layers.hyperparams import relu6
from stillbox.models.layers.masking import mean_of_map
from stillbox.models.parts import BuildOptions, FeatureMap, Part, layers_in_use, make_divisible
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized

Config = schema.MobileNetV3 | schema.MobileNetEdgeTpu | schema.MobileNetMulti | schema.MobileDet
"""What configures such a network."""


def hard_sigmoid(x: jax.Array) -> jax.Array:
    """Returns `relu6(x + 3) / 6` with slim's rounded sixth."""
    return relu6(x + 3) * 0.16667


class Gate(NamedTuple):
    """Sizes of a `SqueezeAndExcite`."""

    channels: int
    """Channels of the layer between the mean and the factors."""
    activation: Activation
    """The activation of that layer."""
    function: Callable[[jax.Array], jax.Array]
    """Returns the factors."""


class SqueezeAndExcite(Named[str, Conv2d]):
    """Factors on the channels of a block, from the mean over its map (arXiv:1709.01507).

    The convolutions `squeeze` and `excite` have biases.

    Args:
        channels: of the map.
        gate: sizes.
        conv: hyperparameters but for normalisation and activation.
        layers: keyword arguments of all layers.
    """

    def __init__(
        self, channels: int, gate: Gate, conv: schema.ConvHyperparams, layers: dict[str, Any]
    ) -> None:
        plain = conv.without_norm()
        inner = replace(plain, activation=gate.activation)
        squeeze = Conv2d(channels, gate.channels, 1, 1, inner, **layers)
        excite = Conv2d(gate.channels, channels, 1, 1, plain, **layers)
        super().__init__("{}", {"squeeze": squeeze, "excite": excite})
        self.function = gate.function

    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Multiplies a map `[B, H, W, C]` by its factors."""
        squeezed = self["squeeze"](mean_of_map(x), train=train)
        return x * self.function(self["excite"](squeezed, train=train)).astype(x.dtype)


class Block(NamedTuple):
    """Layers of a block; channels are final."""

    inputs: int
    wide: int
    """Channels of the widest layer; as many as `inputs`: there is no layer that widens."""
    channels: int
    activation: Activation
    size: int = 3
    """The side of the depthwise kernel."""
    stride: int = 1
    form: Literal["inverted", "fused", "tucker"] = "inverted"
    reduced: int = 0
    """Channels in front of the convolution that filters in a Tucker block."""
    gate: Gate | None = None
    shortcut: bool = True
    """Add the input where shapes agree."""


class MobileBlock(Part):
    """`reduce`, `expand`, `depthwise`, a gate of `squeeze` and `excite`, `project`.

    Layers that a form does not have are absent.

    Args:
        block: its layers.
        conv: hyperparameters of the layers but for the activation.
        depthwise: hyperparameters of the depthwise convolution.
        whole: False: nothing reads what follows the layer that widens, and it is absent.
        options: as for all layers.
    """

    def __init__(
        self,
        block: Block,
        conv: schema.ConvHyperparams,
        depthwise: schema.ConvHyperparams,
        options: BuildOptions,
        *,
        whole: bool = True,
    ) -> None:
        layers = options.layer_arguments()
        active = replace(conv, activation=block.activation)
        wide, inputs, tucker = block.wide, block.inputs, block.form == "tucker"
        self.reduce = Conv2d(inputs, block.reduced, 1, 1, active, **layers) if tucker else None
        inputs = block.reduced if tucker else inputs
        inverted = block.form == "inverted"
        size, stride = (1, 1) if inverted else (block.size, block.stride)
        expand = partial(Conv2d, inputs, wide, size, stride, active, **layers)
        self.expand = expand() if tucker or wide > inputs else None
        filtered = replace(depthwise, activation=block.activation)
        filter_ = partial(DepthwiseConv2d, wide, block.size, block.stride, filtered, **layers)
        self.depthwise = filter_() if whole and inverted else None
        gate = block.gate if whole else None
        self.gate = None if gate is None else SqueezeAndExcite(wide, gate, conv, layers)
        linear = replace(conv, activation="none")
        project = partial(Conv2d, wide, block.channels, 1, 1, linear, **layers)
        self.project = project() if whole else None
        fits = block.stride == 1 and block.inputs == block.channels
        self.residual = block.shortcut and fits

    def widen(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the widest map, `[B, H, W, wide]`, strided in a fused block."""
        for layer in (self.reduce, self.expand):
            if layer is not None:
                x = layer(x, train=train)
        return x

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> tuple[FeatureMap, FeatureMap]:
        """Returns the widest map and the result, `[B, H / stride, W / stride, channels]`."""
        wide = self.widen(x, train=train)
        y = wide if self.depthwise is None else self.depthwise(wide, train=train)
        if self.gate is not None:
            y = self.gate(y, train=train)
        assert self.project is not None  # of a whole block
        y = self.project(y, train=train)
        return wide, x + y if self.residual else y


class MobileNetwork(Part):
    """`conv_0` of stride 2, `block_0`, `block_1`, ..., and `conv_1` where the network has one.

    A tap `block_{k}_expand` is the widest map of block k before its stride.

    Args:
        config: names the layers, and has the hyperparameters `conv`.
        taps: names of the layers with the outputs to return.
        blocks: all blocks of the network.
        last: channels of `conv_1`.
        depthwise: hyperparameters of a depthwise convolution by its size.
        options: as for all layers.
    """

    def __init__(
        self,
        config: Config,
        taps: tuple[str, ...],
        blocks: tuple[Block, ...],
        last: int,
        depthwise: Callable[[int], schema.ConvHyperparams],
        options: BuildOptions,
    ) -> None:
        built, self.names = layers_in_use(config, taps)
        conv, layers = config.conv, options.layer_arguments()
        widths = {"conv_0": blocks[0].inputs, "conv_1": last}
        self.conv_0 = Conv2d(options.image_channels, widths["conv_0"], 3, 2, conv, **layers)
        parts = {}
        for number, block in enumerate(blocks):
            name, expanded = self._names(number)
            if name in built or expanded in built:
                widths |= {expanded: block.wide, name: block.channels}
                hyperparams, whole = depthwise(block.size), name in built
                parts[number] = MobileBlock(block, conv, hyperparams, options, whole=whole)
        self.blocks = Named("block_{}", parts)
        final = partial(Conv2d, blocks[-1].channels, last, 1, 1, conv, **layers)
        self.conv_1 = final() if "conv_1" in built else None
        self.taps = taps
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, C]` to the taps, in their order."""
        outputs = {"conv_0": (x := self.conv_0(x, train=train))}
        for number, block in self.blocks.items():
            name, expanded = self._names(number)
            if name in self.names:
                outputs[expanded], x = block(x, train=train)
                outputs[name] = x
            elif expanded in self.names:
                outputs[expanded] = block.widen(x, train=train)
        if self.conv_1 is not None and "conv_1" in self.names:
            outputs["conv_1"] = self.conv_1(x, train=train)
        return tuple(outputs[tap] for tap in self.taps)

    def _names(self, number: int) -> tuple[str, str]:
        """Returns the names of a block's result and of its widest map."""
        return f"block_{number}", f"block_{number}_expand"


class _Row(NamedTuple):
    """A block before the multipliers."""

    expansion: float
    channels: int
    size: int = 3
    stride: int = 1
    gated: bool = False
    early: bool = False
    """The block has relu whatever is configured."""
    fused: bool = False
    shortcut: bool = True


_LARGE = (
    _Row(1, 16, early=True),
    _Row(4, 24, stride=2, early=True),
    _Row(3, 24, early=True),
    _Row(3, 40, 5, 2, gated=True, early=True),
    *[_Row(3, 40, 5, gated=True, early=True)] * 2,
    _Row(6, 80, stride=2),
    _Row(200 / 80, 80),
    *[_Row(184 / 80, 80)] * 2,
    *[_Row(6, 112, gated=True)] * 2,
    _Row(6, 160, 5, 2, gated=True),
    *[_Row(6, 160, 5, gated=True)] * 2,
)
_SMALL = (
    _Row(1, 16, stride=2, gated=True, early=True),
    _Row(72 / 16, 24, stride=2, early=True),
    _Row(88 / 24, 24, early=True),
    _Row(4, 40, 5, 2, gated=True),
    *[_Row(6, 40, 5, gated=True)] * 2,
    *[_Row(3, 48, 5, gated=True)] * 2,
    _Row(6, 96, 5, 2, gated=True),
    *[_Row(6, 96, 5, gated=True)] * 2,
)
_EDGETPU = (
    _Row(1, 16, fused=True),
    _Row(8, 32, stride=2, fused=True),
    *[_Row(4, 32, fused=True)] * 3,
    _Row(8, 48, stride=2, fused=True),
    *[_Row(4, 48, fused=True)] * 3,
    _Row(8, 96, stride=2),
    *[_Row(4, 96)] * 3,
    _Row(8, 96, shortcut=False),
    *[_Row(4, 96)] * 3,
    _Row(8, 160, 5, 2),
    *[_Row(4, 160, 5)] * 3,
    _Row(8, 192),
)
_MULTI = {
    "avg": (
        _Row(3, 32, stride=2),
        _Row(2, 32),
        _Row(5, 64, 5, 2),
        *[_Row(factor, 64) for factor in (3, 2, 3)],
        _Row(6, 128, 5, 2),
        *[_Row(3, 128)] * 3,
        _Row(6, 160),
        _Row(4, 160),
        _Row(6, 192, stride=2),
        *[_Row(4, 192, 5)] * 3,
    ),
    "max": (
        _Row(3, 32, stride=2),
        _Row(6, 64, 5, 2),
        *[_Row(2, 64)] * 2,
        _Row(6, 128, 5, 2),
        *[_Row(factor, 128) for factor in (4, 3, 3, 6, 3)],
        _Row(6, 160, stride=2),
        _Row(4, 160, 5),
        _Row(5, 160),
        _Row(4, 160, 5),
    ),
}
_SQUEEZE = 4


@implements(schema.MobileNetV3Large)
def mobilenet_v3_large(
    config: schema.MobileNetV3Large, taps: tuple[str, ...], options: BuildOptions
) -> MobileNetwork:
    """Returns 15 blocks."""
    return _mobilenet_v3(config, taps, options, _LARGE, 960)


@implements(schema.MobileNetV3Small)
def mobilenet_v3_small(
    config: schema.MobileNetV3Small, taps: tuple[str, ...], options: BuildOptions
) -> MobileNetwork:
    """Returns 11 blocks."""
    return _mobilenet_v3(config, taps, options, _SMALL, 576)


def _mobilenet_v3(
    config: schema.MobileNetV3,
    taps: tuple[str, ...],
    options: BuildOptions,
    rows: Sequence[_Row],
    last: int,
) -> MobileNetwork:
    """Returns a size from its table; `last` channels are before the multipliers."""
    strided = max(index for index, row in enumerate(rows) if row.stride == 2)

    def thinner(channels: int) -> int:
        return round(channels * config.end_multiplier)

    rows = [
        row._replace(
            channels=thinner(row.channels) if index >= strided else row.channels,
            size=3 if config.minimalistic else row.size,
            gated=row.gated and not config.minimalistic,
        )
        for index, row in enumerate(rows)
    ]
    blocks, width = tuple(_blocks(rows, 16, config)), _width(thinner(last), config)
    return MobileNetwork(config, taps, blocks, width, lambda _: config.conv, options)


@implements(schema.MobileNetEdgeTpu)
def mobilenet_edgetpu(
    config: schema.MobileNetEdgeTpu, taps: tuple[str, ...], options: BuildOptions
) -> MobileNetwork:
    """Returns 22 blocks, of which the first nine are fused."""
    blocks = tuple(_blocks(_EDGETPU, 32, config))
    return MobileNetwork(config, taps, blocks, 0, lambda _: config.conv, options)


@implements(schema.MobileNetMulti)
def mobilenet_multi(
    config: schema.MobileNetMulti, taps: tuple[str, ...], options: BuildOptions
) -> MobileNetwork:
    """Returns 16 blocks, or 14, without gates."""
    blocks = tuple(_blocks(_MULTI[config.fits], 32, config))
    return MobileNetwork(config, taps, blocks, 0, lambda _: config.conv, options)


_Scaled = schema.MobileNetV3 | schema.MobileNetEdgeTpu | schema.MobileNetMulti


def _blocks(rows: Sequence[_Row], root: int, config: _Scaled) -> Iterator[Block]:
    """Yields the blocks with their channels; `root` is for the first convolution."""
    inputs = _width(root, config)
    for row in rows:
        wide = max(inputs, make_divisible(inputs * row.expansion))
        channels = _width(row.channels, config)
        gate = Gate(make_divisible(wide / _SQUEEZE), "relu", hard_sigmoid) if row.gated else None
        yield Block(
            inputs=inputs,
            wide=wide,
            channels=channels,
            activation="relu" if row.early else config.conv.activation,
            size=row.size,
            stride=row.stride,
            form="fused" if row.fused else "inverted",
            gate=gate,
            shortcut=row.shortcut,
        )
        inputs = channels


def _width(depth: int, config: _Scaled) -> int:
    return make_divisible(depth * config.depth_multiplier, config.min_depth)
