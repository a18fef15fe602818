"""Backbones that architecture search found: those for phones and edge devices, and SpineNet.

The blocks of the former are inverted residuals and variants of them
(`models/backbones/mobilenet_v3.py`). SpineNet (arXiv:1912.05027) is a backbone and a pyramid in
one, a list of blocks. Each is the sum of two earlier ones, brought to its level. The published
lists are the defaults; tables at the end hold the sizes of the family.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from stillbox.experiment.schema.layers import (
    L2,
    Backbone,
    BatchNorm,
    ConvHyperparams,
    Initializer,
    TruncatedNormal,
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

# The scope of slim's MobileNets; it does not regularise depthwise kernels.
_SLIM = ConvHyperparams(
    activation="hard_swish",
    regularizer=L2(weight=4e-5),
    initializer=TruncatedNormal(stddev=0.09),
    batch_norm=BatchNorm(decay=0.9997, epsilon=0.001, center=True, scale=True),
    regularize_depthwise=False,
)
_EDGETPU = replace(_SLIM, activation="relu")
_MOBILEDET = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=4e-5),
    initializer=VarianceScaling(factor=2.0, mode="fan_in", exact_cut=True),
    batch_norm=BatchNorm(decay=0.99, epsilon=0.01, center=True, scale=True),
)
_MOBILEDET_CPU = replace(_MOBILEDET, activation="hard_swish")


def _blocks(count: int, unexpanded: Iterable[int] = ()) -> tuple[str, ...]:
    """`block_k` is what block k hands on, `block_k_expand` its widest layer before the stride."""
    return tuple(
        name
        for block in range(count)
        for name in (f"block_{block}_expand", f"block_{block}")
        if not name.endswith("expand") or block not in unexpanded
    )


@dataclass(frozen=True, kw_only=True)
class MobileNetV3(Backbone):
    """What both sizes of MobileNet v3 have in common (arXiv:1905.02244)."""

    min_side: ClassVar[int] = 33

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    min_depth: Channels = 16
    """No convolution but the inner ones of blocks has fewer channels than this."""
    end_multiplier: Multiplier = 0.5
    """Further factor on the channels from the last strided block on; classifiers have 1."""
    last_convolution: bool = True
    """False: there is no convolution behind the blocks, and level 5 is the last block, as in
    TensorFlow Model Garden."""
    minimalistic: bool = False
    """No gates and no 5x5 kernels. Published weights of this form also have
    `conv.activation: relu`."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = _SLIM
    """Hyperparameters of the base network. The first and last convolution and the later blocks
    have its activation; the earlier blocks have relu."""


@dataclass(frozen=True, kw_only=True)
class MobileNetV3Large(MobileNetV3, kind="mobilenet_v3_large"):
    """MobileNet v3 large up to its last convolution (arXiv:1905.02244, table 1)."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order of their computation."""
        return ("conv_0", *_blocks(15, unexpanded=(0,)), *("conv_1",) * self.last_convolution)

    @property
    def levels(self) -> Mapping[int, str]:
        """The last layer of each level; level l has a stride of 2^l pixels."""
        return {2: "block_2", 3: "block_5", 4: "block_11", 5: self.layers[-1]}


@dataclass(frozen=True, kw_only=True)
class MobileNetV3Small(MobileNetV3, kind="mobilenet_v3_small"):
    """MobileNet v3 small up to its last convolution (arXiv:1905.02244, table 2)."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order of their computation."""
        return ("conv_0", *_blocks(11, unexpanded=(0,)), *("conv_1",) * self.last_convolution)

    @property
    def levels(self) -> Mapping[int, str]:
        """The last layer of each level; level l has a stride of 2^l pixels."""
        return {2: "block_0", 3: "block_2", 4: "block_7", 5: self.layers[-1]}


@dataclass(frozen=True, kw_only=True)
class MobileNetEdgeTpu(Backbone, kind="mobilenet_edgetpu"):
    """MobileNet for Edge TPUs up to its last block.

    Without gates, and with a full convolution in place of a depthwise one in the early blocks.
    """

    layers: ClassVar[tuple[str, ...]] = ("conv_0", *_blocks(22, unexpanded=(0,)))
    levels: ClassVar[Mapping[int, str]] = {2: "block_4", 3: "block_8", 4: "block_16", 5: "block_21"}
    min_side: ClassVar[int] = 33

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    min_depth: Channels = 16
    """No block, and not the first convolution, hands on fewer channels than this."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = _EDGETPU
    """Hyperparameters of the base network."""


@dataclass(frozen=True, kw_only=True)
class MobileNetMulti(Backbone, kind="mobilenet_multi"):
    """MobileNet that was searched for several devices at once, up to its last block
    (arXiv:2008.08178)."""

    min_side: ClassVar[int] = 33

    fits: Literal["avg", "max"] = "avg"
    """What the search kept low: the mean latency over the devices, or the largest."""
    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    min_depth: Channels = 8
    """No block, and not the first convolution, hands on fewer channels than this."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = _EDGETPU
    """Hyperparameters of the base network."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order of their computation."""
        return ("conv_0", *_blocks(16 if self.fits == "avg" else 14))

    @property
    def levels(self) -> Mapping[int, str]:
        """The last layer of each level; level l has a stride of 2^l pixels."""
        if self.fits == "avg":
            return {2: "block_1", 3: "block_5", 4: "block_11", 5: "block_15"}
        return {2: "block_0", 3: "block_3", 4: "block_9", 5: "block_13"}


@dataclass(frozen=True, kw_only=True)
class MobileDet(Backbone):
    """What all MobileDets have in common (arXiv:2004.14525).

    Each is the result of a search for one kind of hardware, over inverted residuals and blocks with
    full convolutions.
    """

    min_side: ClassVar[int] = 33

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    depthwise_initializer: Initializer | None = None
    """Distribution of fresh depthwise kernels; None: with the deviation that He's rule gives for
    their own size."""
    conv: ConvHyperparams = _MOBILEDET
    """Hyperparameters of the base network."""


# All but the first have as many blocks.
_MOBILEDET_LEVELS = {2: "block_4", 3: "block_8", 4: "block_16", 5: "block_21"}
_MOBILEDET_LAYERS = ("conv_0", *(f"block_{block}" for block in range(22)))


@dataclass(frozen=True, kw_only=True)
class MobileDetCpu(MobileDet, kind="mobiledet_cpu"):
    """MobileDet for the CPUs of phones: inverted residuals with gates."""

    layers: ClassVar[tuple[str, ...]] = _MOBILEDET_LAYERS[:-3]
    levels: ClassVar[Mapping[int, str]] = {2: "block_1", 3: "block_5", 4: "block_13", 5: "block_18"}

    conv: ConvHyperparams = _MOBILEDET_CPU
    """Hyperparameters of the base network."""


@dataclass(frozen=True, kw_only=True)
class MobileDetGpu(MobileDet, kind="mobiledet_gpu"):
    """MobileDet for the GPUs of Jetson modules: almost no depthwise convolution."""

    layers: ClassVar[tuple[str, ...]] = _MOBILEDET_LAYERS
    levels: ClassVar[Mapping[int, str]] = _MOBILEDET_LEVELS


@dataclass(frozen=True, kw_only=True)
class MobileDetDsp(MobileDet, kind="mobiledet_dsp"):
    """MobileDet for the DSPs of phones."""

    layers: ClassVar[tuple[str, ...]] = _MOBILEDET_LAYERS
    levels: ClassVar[Mapping[int, str]] = _MOBILEDET_LEVELS

    fused_shortcut: bool = True
    """Add the input of block 19, the only fused one of its stage; TensorFlow Model Garden does
    not."""


@dataclass(frozen=True, kw_only=True)
class MobileDetEdgeTpu(MobileDet, kind="mobiledet_edgetpu"):
    """MobileDet for Edge TPUs."""

    layers: ClassVar[tuple[str, ...]] = _MOBILEDET_LAYERS
    levels: ClassVar[Mapping[int, str]] = _MOBILEDET_LEVELS


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
    """The map of the block has a stride of 2^level pixels."""
    inputs: tuple[NodeNumber, ...] = (0, 1)
    """Numbers of the two nodes that it adds up; 0 and 1 are the stem's, the first block is 2."""
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
    """In the order in which they are computed; by default as in the paper."""
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
    """In the order in which they are computed; by default as by the paper's authors."""
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
    """Distribution of fresh depthwise kernels between levels; `conv` has it for others."""
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
