"""Scale-permuted networks: the common part of SpineNet and SpineNet-MBConv (arXiv:1912.05027)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax

from stillbox.experiment import schema
from stillbox.models.backbones.residual import BlockGroup
from stillbox.models.layers import Conv2d
from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.pooling import max_pool
from stillbox.models.layers.stochastic import fold_key
from stillbox.models.parts import BuildOptions, Part, layers_in_use


@dataclass(frozen=True)
class NodeSpec:
    """A node and its map."""

    level: int
    """The map has a stride of 2^level pixels."""
    kind: str
    """Of the node's blocks."""
    channels: int
    """Of the map."""


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
        for number, node in _nodes(config, specs, components):
            setattr(self, f"node_{number}", node)
        self.count = len(specs)
        ends = {}
        for number, block in enumerate(config.blocks, start=len(config.stem)):
            if block.output and config.levels[block.level] in built:
                name = f"endpoint_{block.level}"
                endpoint = (specs[number].channels, config.endpoints_depth, 1, 1, config.conv)
                setattr(self, name, Conv2d(*endpoint, **options.layer_arguments()))
                ends[config.levels[block.level]] = number, name
        self.ends = tuple(ends[tap] for tap in taps)
        self.channels = (config.endpoints_depth,) * len(taps)

    def __call__(
        self, x: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order.

        H and W are multiples of the coarsest stride.
        """
        x = self.stem(x, train=train)
        if self.pools_stem:
            x = max_pool(x, 3, 2)
        maps = [self.node_0(x, train=train)]
        maps.append(self.node_1(maps[0], train=train))
        for number in range(len(maps), self.count):
            node, key = getattr(self, f"node_{number}"), fold_key(dropout_key, number)
            maps.append(node(maps, train=train, dropout_key=key))
        return tuple(getattr(self, name)(maps[number], train=train) for number, name in self.ends)


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
        for index, resample in enumerate(resamples):
            setattr(self, f"resample_{index}", resample)
        self.inputs, self.joined, self.activation = inputs, joined, activation
        self.group = group

    def __call__(
        self, maps: list[jax.Array], *, train: bool, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Returns a map `[B, h, w, D]` from those of all nodes before, `[B, H, W, C]`."""
        terms = [
            getattr(self, f"resample_{index}")(maps[number], train=train)
            for index, number in enumerate(self.inputs)
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
