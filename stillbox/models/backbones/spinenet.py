"""SpineNet, and SpineNet of inverted residuals for mobile devices (arXiv:1912.05027).

Both are scale-permuted networks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.efficientnet import MbConv, MbConvSpec
from stillbox.models.backbones.resnet import (
    EXPANSION,
    BlockGroup,
    BlockKind,
    BlockOptions,
    output_channels,
    residual_group,
)
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.lowering.windows import Padding, padding_of
from stillbox.models.layers.resampling import max_pool, upsample
from stillbox.models.layers.stochastic import fold_key
from stillbox.models.parts import BuildOptions, FeatureMap, Part, layers_in_use, make_divisible
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


@dataclass(frozen=True)
class NodeSpec:
    """A node and its map."""

    level: int
    """The map has a stride of 2^level pixels."""
    kind: str
    """The kind of the node's blocks."""
    channels: int
    """Channels of the map."""


@runtime_checkable
class Components(Protocol):
    """Builds the parts of a network."""

    @property
    def pools_stem(self) -> bool:
        """Whether the stem's map is halved by pooling before node 0."""

    def stem(self) -> tuple[Conv2d, BlockGroup, BlockGroup]:
        """Returns the first convolution and the nodes 0 and 1."""

    def channels(self, level: int, kind: str) -> int:
        """Returns the output channels of a node."""

    def group(self, spec: NodeSpec, drop_connect_rate: float) -> BlockGroup:
        """Returns the blocks after a node's sum."""

    def resample(self, source: NodeSpec, target: NodeSpec) -> Part:
        """Returns the part that converts a node's map to level and channels of another."""


class ScalePermutedBackbone(Part):
    """Nodes of levels in any order, and a map for each level that a neck may read.

    `stem` is the first convolution, `node_0` and `node_1` are the groups of blocks after it, and
    the other `node_{n}` are configured. `endpoint_{l}` is the 1x1 convolution after the node of
    level l.
    """

    def __init__(
        self,
        config: schema.SpineNet | schema.SpineNetMbConv,
        taps: tuple[str, ...],
        components: Components,
        options: BuildOptions,
    ) -> None:
        built, _ = layers_in_use(config, taps)
        self.stem, self.node_0, self.node_1 = components.stem()
        self.pools_stem = components.pools_stem
        specs = [
            NodeSpec(block.level, block.made_of, components.channels(block.level, block.made_of))
            for block in (*config.stem, *config.blocks)
        ]
        self.nodes = Named("node_{}", dict(_nodes(config, specs, components)))
        endpoints, ends = {}, {}
        for number, block in enumerate(config.blocks, start=len(config.stem)):
            if block.output and config.levels[block.level] in built:
                endpoint = (specs[number].channels, config.endpoints_depth, 1, 1, config.conv)
                endpoints[block.level] = Conv2d(*endpoint, **options.layer_arguments())
                ends[config.levels[block.level]] = number, block.level
        self.endpoints = Named("endpoint_{}", endpoints)
        self.ends = tuple(ends[tap] for tap in taps)
        self.channels = (config.endpoints_depth,) * len(taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, C]` to the taps, in their order.

        H and W are multiples of the coarsest stride.
        """
        x = self.stem(x, train=train)
        if self.pools_stem:
            x = max_pool(x, 3, 2)
        maps = [self.node_0(x, train=train)]
        maps.append(self.node_1(maps[0], train=train))
        for number, node in self.nodes.items():
            maps.append(node(maps, train=train, dropout_key=fold_key(dropout_key, number)))
        ends = ((self.endpoints[level], maps[number]) for number, level in self.ends)
        return tuple(endpoint(x, train=train) for endpoint, x in ends)


class Node(Part):
    """Blocks `group` after the activated sum of resampled inputs and joined maps.

    Args:
        inputs: numbers of the nodes that are resampled.
        resamples: `resample_{i}` of each input.
        joined: numbers of the nodes that are added without resampling.
        group: the blocks.
        activation: of the sum.
    """

    def __init__(
        self,
        inputs: tuple[int, ...],
        resamples: Sequence[Part],
        joined: tuple[int, ...],
        group: BlockGroup,
        activation: schema.Activation,
    ) -> None:
        self.resamples = Named("resample_{}", dict(enumerate(resamples)))
        self.inputs, self.joined, self.activation = inputs, joined, activation
        self.group = group

    def __call__(
        self, maps: list[FeatureMap], *, train: bool, dropout_key: jax.Array | None
    ) -> FeatureMap:
        """Returns a map `[B, h, w, D]` from the maps of all nodes before, `[B, H, W, C]`."""
        terms = [
            resample(maps[number], train=train)
            for resample, number in zip(self.resamples.values(), self.inputs, strict=True)
        ]
        terms += [maps[number] for number in self.joined]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return self.group(ACTIVATIONS[self.activation](total), train=train, dropout_key=dropout_key)


def _nodes(
    config: schema.SpineNet | schema.SpineNetMbConv, specs: list[NodeSpec], components: Components
) -> Iterator[tuple[int, Node]]:
    """Yields the configured nodes with their numbers."""
    blocks = zip(config.blocks, config.joined(), strict=True)
    for index, (block, joined) in enumerate(blocks):
        number = len(config.stem) + index
        spec = specs[number]
        resamples = [components.resample(specs[source], spec) for source in block.inputs]
        rate = config.drop_connect_rate * (index + 1) / len(config.blocks)
        group = components.group(spec, rate)
        yield number, Node(block.inputs, resamples, joined, group, config.conv.activation)


_STEM_CHANNELS = 64
# Width of a block by its level, before the scale; a bottleneck has four times as many outputs.
_WIDTHS = {1: 32, 2: 64, 3: 128, 4: 256, 5: 256, 6: 256, 7: 256}


@implements(schema.SpineNet)
def spinenet(
    config: schema.SpineNet, taps: tuple[str, ...], options: BuildOptions
) -> ScalePermutedBackbone:
    """Returns residual blocks and bottlenecks after a 7x7 convolution and a pooling."""
    return ScalePermutedBackbone(config, taps, _Components(config, options), options)


@dataclass(frozen=True)
class _Components:
    config: schema.SpineNet
    options: BuildOptions
    pools_stem: bool = True

    def stem(self) -> tuple[Conv2d, BlockGroup, BlockGroup]:
        config, width = self.config, self._width(2)
        layers = self.options.layer_arguments() | {"padding": _padding(self.config)}
        inputs = self.options.image_channels
        convolution = Conv2d(inputs, _STEM_CHANNELS, 7, 2, config.conv, **layers)
        shared = BlockOptions(config.conv, self.options)
        first = residual_group("bottleneck", _STEM_CHANNELS, width, config.repeats, shared)
        second = residual_group("bottleneck", first.channels, width, config.repeats, shared)
        return convolution, first, second

    def channels(self, level: int, kind: str) -> int:
        return output_channels(_residual(kind), self._width(level))

    def group(self, spec: NodeSpec, drop_connect_rate: float) -> BlockGroup:
        shared = BlockOptions(self.config.conv, self.options, drop_connect_rate=drop_connect_rate)
        width, repeats = self._width(spec.level), self.config.repeats
        return residual_group(_residual(spec.kind), spec.channels, width, repeats, shared)

    def resample(self, source: NodeSpec, target: NodeSpec) -> "Resample":
        return Resample(source, target, self.config, self.options)

    def _width(self, level: int) -> int:
        return max(int(_WIDTHS[level] * self.config.filter_scale), 1)


def _residual(kind: str) -> BlockKind:
    return "bottleneck" if kind == "bottleneck" else "residual"


class Resample(Part):
    """From one level to another in few channels: `squeeze`, `halve` on the way down, `expand`.

    On the way down a pooling follows the strided convolution if more than a half is needed; on the
    way up pixels are repeated.
    """

    def __init__(
        self, source: NodeSpec, target: NodeSpec, config: schema.SpineNet, options: BuildOptions
    ) -> None:
        layers = options.layer_arguments() | {"padding": _padding(config)}
        linear = replace(config.conv, activation="none")
        base = source.channels // (EXPANSION if source.kind == "bottleneck" else 1)
        width = max(int(base * config.resample_alpha), 1)
        self.steps, self.pools_by_halves = target.level - source.level, config.pools_by_halves
        self.squeeze = Conv2d(source.channels, width, 1, 1, config.conv, **layers)
        down = self.steps > 0
        self.halve = Conv2d(width, width, 3, 2, config.conv, **layers) if down else None
        self.expand = Conv2d(width, target.channels, 1, 1, linear, **layers)

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, H / 2^steps, W / 2^steps, D]`."""
        x = self.squeeze(x, train=train)
        if self.halve is not None:
            x = self.halve(x, train=train)
        if self.steps > 1 and self.pools_by_halves:
            for _ in range(1, self.steps):
                x = max_pool(x, 3, 2)
        elif self.steps > 1:
            x = max_pool(x, 3 if self.steps == 2 else 5, 2 ** (self.steps - 1))
        if self.steps < 0:
            x = upsample(x, 2**-self.steps)
        return self.expand(x, train=train)


# Channels of a block by its level, before the scale; the stem's convolution is as level 0.
_MBCONV_WIDTHS = {0: 8, 1: 16, 2: 24, 3: 40, 4: 80, 5: 112, 6: 112, 7: 112}
_EXPANSION = 6


@implements(schema.SpineNetMbConv)
def spinenet_mbconv(
    config: schema.SpineNetMbConv, taps: tuple[str, ...], options: BuildOptions
) -> ScalePermutedBackbone:
    """Returns inverted residuals after a 3x3 convolution."""
    return ScalePermutedBackbone(config, taps, _MbconvComponents(config, options), options)


@dataclass(frozen=True)
class _MbconvComponents:
    config: schema.SpineNetMbConv
    options: BuildOptions
    pools_stem: bool = False

    def stem(self) -> tuple[Conv2d, BlockGroup, BlockGroup]:
        layers = self.options.layer_arguments() | {"padding": _padding(self.config)}
        widths = [self._width(level) for level in range(3)]
        inputs = self.options.image_channels
        convolution = Conv2d(inputs, widths[0], 3, 2, self.config.conv, **layers)
        first = self._group(widths[0], widths[1], stride=1)
        return convolution, first, self._group(widths[1], widths[2], stride=2)

    def channels(self, level: int, kind: str) -> int:
        return self._width(level)

    def group(self, spec: NodeSpec, drop_connect_rate: float) -> BlockGroup:
        return self._group(spec.channels, spec.channels, rate=drop_connect_rate)

    def resample(self, source: NodeSpec, target: NodeSpec) -> "SeparableResample":
        return SeparableResample(source, target, self.config, self.options)

    def _group(
        self, inputs: int, channels: int, *, stride: int = 1, rate: float = 0.0
    ) -> BlockGroup:
        layers = self.options.layer_arguments() | {"padding": _padding(self.config)}
        first = MbConvSpec(
            inputs,
            channels,
            stride,
            expansion=_EXPANSION,
            se_ratio=self.config.se_ratio,
            drop_connect_rate=rate,
            gate=self.config.gate,
            gate_activation=self.config.gate_activation,
        )
        other = replace(first, inputs=channels, stride=1)
        return BlockGroup(
            MbConv(spec, self.config.conv, layers, depthwise=_depthwise(self.config, block=True))
            for spec in (first, *[other] * (self.config.repeats - 1))
        )

    def _width(self, level: int) -> int:
        width = _MBCONV_WIDTHS[level] * self.config.filter_scale
        return make_divisible(width) if self.config.rounded_channels else max(int(width), 1)


class SeparableResample(Part):
    """From one level to another: depthwise `halve_{s}` for each step down, then `match`.

    On the way up pixels are repeated.
    """

    def __init__(
        self,
        source: NodeSpec,
        target: NodeSpec,
        config: schema.SpineNetMbConv,
        options: BuildOptions,
    ) -> None:
        layers = options.layer_arguments() | {"padding": _padding(config)}
        self.steps = target.level - source.level
        halves = {
            step: DepthwiseConv2d(source.channels, 3, 2, _depthwise(config), **layers)
            for step in range(1, self.steps + 1)
        }
        self.halves = Named("halve_{}", halves)
        linear = replace(config.conv, activation="none")
        self.match = Conv2d(source.channels, target.channels, 1, 1, linear, **layers)

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, H / 2^steps, W / 2^steps, D]`."""
        for halve in self.halves.values():
            x = halve(x, train=train)
        if self.steps < 0:
            x = upsample(x, 2**-self.steps)
        return self.match(x, train=train)


def _depthwise(config: schema.SpineNetMbConv, *, block: bool = False) -> schema.ConvHyperparams:
    initializer = config.block_depthwise_initializer if block else None
    return replace(config.conv, initializer=initializer or config.depthwise_initializer)


def _padding(config: schema.ScalePermuted) -> Padding:
    return padding_of(config.explicit_padding)
