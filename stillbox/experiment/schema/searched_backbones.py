"""SpineNet (arXiv:1912.05027), a backbone and a pyramid in one.

The network is a list of blocks. Each is the sum of two earlier ones, brought to its level. The
published lists are the defaults; tables at the end hold the sizes of the family.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from stillbox.experiment.schema.layers import (
    L2,
    Backbone,
    BatchNorm,
    ConvHyperparams,
    Initializer,
    VarianceScaling,
)
from stillbox.experiment.schema.ranges import (
    Channels,
    Fraction,
    FractionBelowOne,
    Items,
    Multiplier,
    NodeNumber,
    Range,
)

_NORM = BatchNorm(decay=0.997, epsilon=1e-4, center=True, scale=True)
_FAN_IN = VarianceScaling(factor=1.0, mode="fan_in", exact_cut=True)
_GLOROT = VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")
_SPINENET = ConvHyperparams(
    activation="swish", regularizer=L2(weight=4e-5), initializer=_FAN_IN, batch_norm=_NORM
)
_MBCONV = ConvHyperparams(
    activation="swish", regularizer=L2(weight=3e-5), initializer=_FAN_IN, batch_norm=_NORM
)

_LEVELS = range(1, 8)

BlockKind = Literal["residual", "bottleneck", "mbconv"]


@dataclass(frozen=True, kw_only=True)
class ScalePermutedBlock:
    """Base of the blocks; not a block itself."""

    level: Annotated[int, Range(1, 7)] = 3
    """Its map has a stride of 2^level pixels."""
    inputs: tuple[NodeNumber, ...] = (0, 1)
    """Numbers of the two nodes whose sum it gets; 0 and 1 are the stem's, the first block is 2."""
    output: bool = False
    """Whether it makes the map of its level. Such a block also adds up the earlier ones of its kind
    and level that nothing else has read."""

    @property
    def made_of(self) -> BlockKind:
        """Kind of the block after the sum."""
        return "mbconv"


@dataclass(frozen=True, kw_only=True)
class SpineBlock(ScalePermutedBlock):
    """A block of SpineNet."""

    block: Literal["residual", "bottleneck"] = "bottleneck"
    """Two 3x3 convolutions, or a 1x1, a 3x3 and a 1x1 to four times the channels."""

    @property
    def made_of(self) -> BlockKind:
        """Kind of the block after the sum."""
        return self.block


@dataclass(frozen=True, kw_only=True)
class MbConvSpineBlock(ScalePermutedBlock):
    """A block of SpineNet-MBConv: an inverted residual with a squeezed gate."""


@dataclass(frozen=True, kw_only=True)
class ScalePermuted(Backbone):
    """Base of the two families; not a backbone itself."""

    min_side: ClassVar[int] = 1  # A rule asks for multiples of the coarsest stride.
    last_layer: ClassVar[str] = ""
    stem: ClassVar[tuple[ScalePermutedBlock, ...]]
    """Nodes 0 and 1."""

    blocks: tuple[ScalePermutedBlock, ...]
    """In the order in which they are computed."""
    filter_scale: Multiplier = 1.0
    """Factor on the channels of all blocks."""
    repeats: Annotated[int, Range(1, 8)] = 1
    """How often each block is repeated."""
    endpoints_depth: Channels = 256
    """Channels of every map that the neck gets."""
    min_level: Annotated[int, Range(1, 7)] = 3
    """Finest map that the neck gets."""
    max_level: Annotated[int, Range(1, 7)] = 7
    """Coarsest one."""
    explicit_padding: bool = True
    """Pad strided convolutions alike on all sides instead of as little as possible, as "Object
    Detection Models on TPU" does; TensorFlow Model Garden does not."""
    drop_connect_rate: FractionBelowOne = 0.0
    """Probability with which the last block is left out for an image in training, its shortcut
    apart; block i of n has i/n of it, the stem none (arXiv:1603.09382)."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the maps that a neck can read."""
        return tuple(self.levels.values())

    @property
    def levels(self) -> Mapping[int, str]:
        """The same by level, see `Backbone.levels`."""
        within = [level for level in _LEVELS if self.min_level <= level <= self.max_level]
        # A rule refuses bounds with no level in between; it reads this property first.
        return {level: f"level_{level}" for level in within or _LEVELS}

    def joined(self) -> tuple[tuple[int, ...], ...]:
        """Returns for each block the nodes that it adds to its inputs."""
        nodes, read = list(self.stem), set[int]()
        joined: list[tuple[int, ...]] = []
        for block in self.blocks:
            read.update(block.inputs)
            loose = (
                number
                for number, node in enumerate(nodes)
                if number not in read and (node.level, node.made_of) == (block.level, block.made_of)
            )
            joined.append(tuple(loose) if block.output else ())
            read.update(joined[-1])
            nodes.append(block)
        return tuple(joined)


def _spine_blocks() -> tuple[SpineBlock, ...]:
    plan: tuple[tuple[int, Literal["residual", "bottleneck"], tuple[int, int]], ...] = (
        (2, "bottleneck", (0, 1)),
        (4, "residual", (0, 1)),
        (3, "bottleneck", (2, 3)),
        (4, "bottleneck", (2, 4)),
        (6, "residual", (3, 5)),
        (4, "bottleneck", (3, 5)),
        (5, "residual", (6, 7)),
        (7, "residual", (6, 8)),
        (5, "bottleneck", (8, 9)),
        (5, "bottleneck", (8, 10)),
        (4, "bottleneck", (5, 10)),
        (3, "bottleneck", (4, 10)),
        (5, "bottleneck", (7, 12)),
        (7, "bottleneck", (5, 14)),
        (6, "bottleneck", (12, 14)),
    )
    return tuple(
        SpineBlock(level=level, block=block, inputs=inputs, output=number >= len(plan) - 5)
        for number, (level, block, inputs) in enumerate(plan)
    )


@dataclass(frozen=True, kw_only=True)
class SpineNet(ScalePermuted, kind="spinenet"):
    """SpineNet of residual blocks and bottlenecks; its neck is `identity`."""

    stem: ClassVar[tuple[ScalePermutedBlock, ...]] = (SpineBlock(level=2), SpineBlock(level=2))

    blocks: Annotated[tuple[SpineBlock, ...], Items(32)] = _spine_blocks()
    """In the order in which they are computed; by default those of the paper."""
    resample_alpha: Multiplier = 0.5
    """Share of an input's channels (a quarter of a bottleneck's) in which it is brought to another
    level."""
    pools_by_halves: bool = False
    """Halve a map by 3x3 max pooling as often as needed, as TensorFlow Model Garden does; otherwise
    it is pooled once, with a larger window and stride."""
    conv: ConvHyperparams = _SPINENET
    """Hyperparameters of all convolutions."""


def _mbconv_blocks() -> tuple[MbConvSpineBlock, ...]:
    plan = (
        (2, (0, 1)),
        (2, (1, 2)),
        (4, (1, 2)),
        (3, (3, 4)),
        (4, (3, 5)),
        (6, (4, 6)),
        (4, (4, 6)),
        (5, (7, 8)),
        (7, (7, 9)),
        (5, (9, 10)),
        (5, (9, 11)),
        (4, (6, 11)),
        (3, (5, 11)),
        (5, (8, 13)),
        (7, (6, 15)),
        (6, (13, 15)),
    )
    return tuple(
        MbConvSpineBlock(level=level, inputs=inputs, output=number >= len(plan) - 5)
        for number, (level, inputs) in enumerate(plan)
    )


@dataclass(frozen=True, kw_only=True)
class SpineNetMbConv(ScalePermuted, kind="spinenet_mbconv"):
    """SpineNet of inverted residuals, for mobile devices; its neck is `identity`."""

    stem: ClassVar[tuple[ScalePermutedBlock, ...]] = (
        MbConvSpineBlock(level=1),
        MbConvSpineBlock(level=2),
    )

    blocks: Annotated[tuple[MbConvSpineBlock, ...], Items(32)] = _mbconv_blocks()
    """In the order in which they are computed; by default those of the paper's authors."""
    endpoints_depth: Channels = 48
    """Channels of every map that the neck gets."""
    se_ratio: Fraction = 0.2
    """Share of a block's input channels to which its gate squeezes; 0: there is no gate."""
    gate: Literal["sigmoid", "hard_sigmoid"] = "sigmoid"
    """Function at the end of the gates."""
    gate_activation: Literal["swish", "relu"] = "swish"
    """Activation between the two convolutions of a gate."""
    rounded_channels: bool = True
    """Channels times `filter_scale` are rounded to multiples of 8; otherwise they are cut to whole
    numbers, as in TensorFlow Model Garden."""
    depthwise_initializer: Initializer = _GLOROT
    """Distribution of fresh depthwise kernels between levels, where `conv` has that of others."""
    block_depthwise_initializer: Initializer | None = None
    """The same inside blocks; None: as between levels."""
    conv: ConvHyperparams = _MBCONV
    """Hyperparameters of all convolutions; the gate has biases whatever they say."""


SPINENET_SIZES: Mapping[str, SpineNet] = {
    "49S": SpineNet(filter_scale=0.65, endpoints_depth=128),
    "49": SpineNet(),
    "96": SpineNet(repeats=2),
    "143": SpineNet(resample_alpha=1.0, repeats=3),
    "143l": SpineNet(filter_scale=1.3, resample_alpha=1.0, repeats=3),
    "190": SpineNet(filter_scale=1.3, endpoints_depth=512, resample_alpha=1.0, repeats=4),
}
"""The members of the family by the names that their authors give them."""

SPINENET_MBCONV_SIZES: Mapping[str, SpineNetMbConv] = {
    "49": SpineNetMbConv(),
    "49S": SpineNetMbConv(filter_scale=0.65, endpoints_depth=40),
    "49XS": SpineNetMbConv(filter_scale=0.6, endpoints_depth=24),
}
"""The mobile members of the family."""
