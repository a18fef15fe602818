"""NAS-FPN (arXiv:1904.07392).

The gates and joined maps of a cell are derived from the configuration.
"""

from dataclasses import replace
from typing import NamedTuple

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.resnet import Block, BlockOptions
from stillbox.models.layers import Conv2d, SeparableConv2d
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.masking import max_of_map
from stillbox.models.layers.resampling import max_pool, upsample
from stillbox.models.layers.stochastic import drop_block, fold_key
from stillbox.models.parts import BuildOptions, FeatureMap, Part
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


class Step(NamedTuple):
    """Computation of one node. Input maps of the cell count from 0, nodes go on."""

    level: int
    """The level of the resulting map."""
    inputs: tuple[int, int]
    """Maps that are combined."""
    gate: int | None
    """Which of the two gates the other: 0 or 1; None: they are added."""
    joined: tuple[int, ...]
    """Maps that are added to the combination."""


def plan_cell(config: schema.NasFpn) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Returns the nodes' steps, and the numbers of the output maps, from fine to coarse.

    An output node also adds all maps of its level that no node has read.
    """
    levels = list(range(config.min_level, config.max_level + 1))
    steps, outputs, read = [], {}, set()
    for number, node in enumerate(config.cell, start=len(levels)):
        first, second = node.inputs
        read |= {first, second}
        joined: tuple[int, ...] = ()
        if node.output:
            outputs[node.level] = number
            alike = (m for m, level in enumerate(levels) if level == node.level)
            joined = tuple(m for m in alike if m not in read)
            read |= {*joined}
        gate = None
        if node.combine == "attention" and not config.sum_only:
            gate = 0 if levels[first] >= levels[second] else 1
        steps.append(Step(node.level, (first, second), gate, joined))
        levels.append(node.level)
    return tuple(steps), tuple(outputs[level] for level in sorted(outputs))


@implements(schema.NasFpn)
class NasFpnNeck(Part):
    """Taps of one depth and their max-pooled halves, sent through `cell_0`, `cell_1`, ...

    `resample_{l}` is the 1x1 convolution that brings the tap of level l to the common depth, if
    its depth differs.
    """

    def __init__(
        self, config: schema.NasFpn, inputs: tuple[int, ...], options: BuildOptions
    ) -> None:
        maps = config.count_maps()
        resample = {
            level: _projection(config, channels, options)
            for level, channels in enumerate(inputs, start=config.min_level)
        }
        channels, cells = config.depth, {}
        for number in range(config.num_repeats):
            cells[number] = NasFpnCell(config, channels, options)
            channels = cells[number].channels
        self.resample, self.cells = Named("resample_{}", resample), Named("cell_{}", cells)
        self.channels = (channels,) * maps

    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps the features of the backbone to all feature maps, from fine to coarse."""
        maps = [
            _project(projection, tap, train=train)
            for projection, tap in zip(self.resample.values(), features, strict=True)
        ]
        while len(maps) < len(self.channels):
            maps.append(max_pool(maps[-1], 2, 2))
        for number, cell in self.cells.items():
            maps = cell(maps, train=train, dropout_key=fold_key(dropout_key, number))
        return tuple(maps)


class NasFpnCell(Part):
    """Nodes `node_{n}`, numbered on from the input maps, which have `inputs` channels."""

    def __init__(self, config: schema.NasFpn, inputs: int, options: BuildOptions) -> None:
        self.steps, self.outputs = plan_cell(config)
        self.levels = (*range(config.min_level, config.max_level + 1),)
        channels = dict.fromkeys(range(len(self.levels)), inputs)
        nodes = {}
        for number, step in enumerate(self.steps, start=len(self.levels)):
            nodes[number] = CombineNode(config, step, channels, options)
            channels[number] = self.channels = nodes[number].channels
        self.nodes = Named("node_{}", nodes)

    @rematerialized
    def __call__(
        self, maps: list[FeatureMap], *, train: bool, dropout_key: jax.Array | None = None
    ) -> list[FeatureMap]:
        """Maps `[B, H, W, C]`, from fine to coarse, to as many of the same sizes."""
        maps, levels = list(maps), list(self.levels)
        for number, node in self.nodes.items():
            key = fold_key(dropout_key, number)
            maps.append(node(maps, levels, train=train, dropout_key=key))
            levels.append(node.step.level)
        return [maps[number] for number in self.outputs]


class CombineNode(Part):
    """`block` after the combination of the inputs.

    `resample_0`, `resample_1` and `resample_joined_{m}` bring the inputs and each joined map m to
    the common depth, if theirs differs. `channels` are of the maps before the node.
    """

    def __init__(
        self, config: schema.NasFpn, step: Step, channels: dict[int, int], options: BuildOptions
    ) -> None:
        resample = {
            place: _projection(config, channels[source], options)
            for place, source in enumerate(step.inputs)
        }
        joined = {source: _projection(config, channels[source], options) for source in step.joined}
        self.resample = Named("resample_{}", resample)
        self.joined = Named("resample_joined_{}", joined)
        self.step, self.activation = step, config.conv.activation
        self.block, self.channels = _block(config, options)
        self.drop_block = config.drop_block if config.block == "conv" else None

    def __call__(
        self,
        maps: list[FeatureMap],
        levels: list[int],
        *,
        train: bool,
        dropout_key: jax.Array | None = None,
    ) -> FeatureMap:
        """Returns the node's map `[B, H, W, channels]` from those before it."""
        inputs = [(self.step.inputs[place], layer) for place, layer in self.resample.items()]
        first, second, *joined = (
            _resample(_project(layer, maps[m], train=train), levels[m], self.step.level)
            for m, layer in (*inputs, *self.joined.items())
        )
        x = _combine(first, second, self.step.gate)
        for other in joined:
            x = x + other
        x = ACTIVATIONS[self.activation](x)
        if isinstance(self.block, Block):
            return self.block(x, train=train, dropout_key=dropout_key)
        # Outputs with a bias are float32.
        x = self.block(x, train=train).astype(x.dtype)
        if train and self.drop_block is not None:
            x = drop_block(x, self.drop_block, dropout_key)
        return x


def _projection(
    config: schema.NasFpn, inputs: int, options: BuildOptions
) -> SeparableConv2d | Conv2d | None:
    """Returns a 1x1 convolution to the common depth; None: `inputs` channels are as many."""
    if inputs == config.depth:
        return None
    linear = replace(config.conv, activation="none")
    convolution = SeparableConv2d if config.depthwise else Conv2d
    return convolution(inputs, config.depth, 1, 1, linear, **options.layer_arguments())


def _project(
    projection: SeparableConv2d | Conv2d | None, x: FeatureMap, *, train: bool
) -> FeatureMap:
    return x if projection is None else projection(x, train=train).astype(x.dtype)


def _resample(x: FeatureMap, level: int, target: int) -> FeatureMap:
    """Brings `[B, H, W, C]` of one level to another."""
    if level < target:
        factor = 2 ** (target - level)
        return max_pool(x, factor, factor)
    return upsample(x, 2 ** (level - target)) if level > target else x


def _combine(first: FeatureMap, second: FeatureMap, gate: int | None) -> FeatureMap:
    """Adds two maps of one shape; `gate` is the one that gates the other, if any."""
    if gate is None:
        return first + second
    gating, gated = (second, first) if gate else (first, second)
    return gating + gated * jax.nn.sigmoid(max_of_map(gating))


def _block(
    config: schema.NasFpn, options: BuildOptions
) -> tuple[Part | SeparableConv2d | Conv2d, int]:
    """Returns a node's block and its channels."""
    depth = config.depth
    if config.block == "bottleneck":
        shared = BlockOptions(
            conv=config.block_conv or config.conv,
            build=options,
            drop_connect_rate=config.drop_connect_rate,
            drop_block=config.drop_block,
        )
        bottleneck = Block("bottleneck", depth, depth, 1, shared)
        return bottleneck, bottleneck.channels
    linear = replace(config.conv, activation="none")
    convolution = SeparableConv2d if config.depthwise else Conv2d
    return convolution(depth, depth, 3, 1, linear, **options.layer_arguments()), depth
