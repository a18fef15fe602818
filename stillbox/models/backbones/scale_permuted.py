"""What SpineNet and SpineNet-MBConv have in common (arXiv:1912.05027; TPU detection sheet 3.5)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax

from stillbox.experiment import schema
from stillbox.models.backbones.residual import BlockGroup
from stillbox.models.layers import Conv2d
from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.lowering import max_pool
from stillbox.models.layers.stochastic import fold_key
from stillbox.models.parts import BuildOptions, Part, layers_in_use


@dataclass(frozen=True)
class Place:
    """Where a node stands."""

    level: int
    """Its map has a stride of 2^level pixels."""
    kind: str
    """What its blocks are."""
    channels: int
    """Of its map."""


class Family(Protocol):
    """What one of the two is made of."""

    @property
    def pools_stem(self) -> bool:
        """Whether the stem's map is halved by pooling in front of node 0."""

    def stem(self) -> tuple[Conv2d, BlockGroup, BlockGroup]:
        """Returns the first convolution and the nodes 0 and 1."""

    def channels(self, level: int, kind: str) -> int:
        """Returns how many a node of a level makes."""

    def group(self, place: Place, drop_connect_rate: float) -> BlockGroup:
        """Returns what stands behind a node's sum."""

    def resample(self, source: Place, target: Place) -> Part:
        """Returns what brings a node's map to level and channels of another."""


class ScalePermuted(Part):
    """Nodes of levels in any order, and a map for each level that a neck may read.

    `stem` is the first convolution, `node_0` and `node_1` are the groups of blocks behind it, and
    the other `node_{n}` those of the description. `endpoint_{l}` is the 1x1 convolution behind the
    node that makes level l.

    Args:
        config: blocks, widths and hyperparameters.
        taps: names of the maps that are wanted.
        family: what the parts are.
        options: what all layers of the detector share.

    Raises:
        UserError: a tap is no map of this network.
    """

    def __init__(
        self,
        config: schema.SpineNet | schema.SpineNetMbConv,
        taps: tuple[str, ...],
        family: Family,
        options: BuildOptions,
    ) -> None:
        built, _ = layers_in_use(config, taps)
        self.stem, self.node_0, self.node_1 = family.stem()
        self.pools_stem = family.pools_stem
        places = [
            Place(block.level, block.made_of, family.channels(block.level, block.made_of))
            for block in (*config.stem, *config.blocks)
        ]
        for number, node in _nodes(config, places, family):
            setattr(self, f"node_{number}", node)
        self.count = len(places)
        ends = {}
        for number, block in enumerate(config.blocks, start=len(config.stem)):
            if block.output and config.levels[block.level] in built:
                name = f"endpoint_{block.level}"
                endpoint = (places[number].channels, config.endpoints_depth, 1, 1, config.conv)
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
    """`block_{b}` behind the activated sum of what `resample_{i}` makes of each input.

    Args:
        inputs: numbers of the nodes that are brought here.
        resamples: what brings them.
        joined: numbers of the nodes that are added as they are.
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
    config: schema.SpineNet | schema.SpineNetMbConv, places: list[Place], family: Family
) -> Iterator[tuple[int, Node]]:
    """Yields the described nodes with their numbers."""
    blocks = zip(config.blocks, config.joined(), strict=True)
    for index, (block, joined) in enumerate(blocks):
        number = len(config.stem) + index
        place = places[number]
        resamples = [family.resample(places[source], place) for source in block.inputs]
        rate = config.drop_connect_rate * (index + 1) / len(config.blocks)
        group = family.group(place, rate)
        yield number, Node(block.inputs, resamples, joined, group, config.conv.activation)
