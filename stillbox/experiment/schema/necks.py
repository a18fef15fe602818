"""From taps to the feature maps that carry anchors.

The original's `object_detection/models/feature_map_generators.py` and, for MnasFPN
(arXiv:1912.01106), `object_detection/models/ssd_mobilenet_v2_mnasfpn_feature_extractor.py`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from stillbox.experiment.schema.layers import (
    L2,
    Backbone,
    BatchNorm,
    ConvHyperparams,
    DropBlock,
    Initializer,
    TruncatedNormal,
    VarianceScaling,
)
from stillbox.experiment.schema.ranges import (
    Channels,
    Count,
    FractionBelowOne,
    KernelSide,
    Level,
    Multiplier,
    NodeNumber,
    OptionalChannels,
    Range,
    Repeats,
)
from stillbox.experiment.variants import RegisteredConfig

# As in most published configs.
_FEATURES = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=4e-5),
    initializer=TruncatedNormal(stddev=0.03),
    batch_norm=BatchNorm(decay=0.997, epsilon=0.001, center=True, scale=True),
)

# As in "Object Detection Models on TPU". Glorot's initialiser, and biases in front of batch
# norm, are the defaults of TensorFlow's layers.
_TPU_FEATURES = ConvHyperparams(
    activation="relu",
    regularizer=L2(weight=1e-4),
    initializer=VarianceScaling(factor=1.0, uniform=True, mode="fan_avg"),
    batch_norm=BatchNorm(decay=0.997, epsilon=1e-4, center=True, scale=True),
    force_bias=True,
)

# As in the published configs.
_BIFPN = ConvHyperparams(
    activation="swish",
    regularizer=L2(weight=4e-5),
    initializer=TruncatedNormal(stddev=0.03),
    batch_norm=BatchNorm(decay=0.99, epsilon=0.001, center=True, scale=True),
    force_bias=True,
)


class Neck(RegisteredConfig):
    """From taps of the backbone to the feature maps that carry anchors.

    Called as `(config, channels, options)`, with the channels of the taps; returns a
    `models.parts.Part` that maps taps to feature maps `[B, H, W, C]` and has their `channels`.
    """

    def taps_of(self, backbone: Backbone) -> tuple[str, ...]:
        """Returns the backbone's layers that this neck taps, from fine to coarse."""
        raise NotImplementedError

    def count_maps(self) -> int:
        """Returns the number of feature maps."""
        raise NotImplementedError

    @property
    def conv(self) -> ConvHyperparams | None:
        """Hyperparameters of the convolutions, if they come from the experiment."""
        return None


@dataclass(frozen=True, kw_only=True)
class SsdExtraLayers(Neck, kind="ssd_layers"):
    """SSD's extra layers: each shrinks the map with a 1x1 and a 3x3 convolution."""

    taps: tuple[str, ...] = ("conv_11_pointwise", "conv_13_pointwise")
    """Backbone layers that feed the first feature maps, from fine to coarse."""
    extra_depths: tuple[Channels, ...] = (512, 256, 256, 128)
    """Channels of each extra feature map before the depth multiplier."""
    extra_strides: tuple[Annotated[int, Range(1, 2)], ...] = ()
    """Stride of each extra 3x3 convolution; empty: 2 for all. A convolution of stride 1 is not
    padded (the coarsest two of SSD300): its map loses a pixel at every edge."""
    extra_kernel_sizes: tuple[KernelSide, ...] = ()
    """Side of each extra kernel that shrinks; empty: 3 for all."""
    depth_multiplier: Multiplier = 1.0
    """Factor on the extra channel counts."""
    min_depth: Channels = 16
    """No extra layer has fewer channels than this."""
    depthwise: bool = False
    """Halve with a depthwise and a 1x1 convolution instead of a full one (SSDLite)."""
    explicit_padding: bool = False
    """Pad strided convolutions alike on all sides instead of as little as possible."""
    conv: ConvHyperparams = _FEATURES
    """Hyperparameters of the extra layers."""

    def taps_of(self, backbone: Backbone) -> tuple[str, ...]:
        """Returns the backbone's layers that this neck reads, from fine to coarse."""
        return self.taps

    def count_maps(self) -> int:
        """Returns how many feature maps it makes."""
        return len(self.taps) + len(self.extra_depths)


@dataclass(frozen=True, kw_only=True)
class Ppn(Neck, kind="ppn"):
    """Pooling pyramid network: one map, and its max-pooled halves (arXiv:1807.03284)."""

    tap: str = "conv_11_pointwise"
    """Backbone layer that is pooled."""
    num_maps: Count = 6
    """Feature maps, the tap's own included."""
    depth: OptionalChannels = 0
    """Channels of a 1x1 convolution before the pooling; 0: there is none."""
    conv: ConvHyperparams = _FEATURES
    """Hyperparameters of that convolution."""

    def taps_of(self, backbone: Backbone) -> tuple[str, ...]:
        """Returns the backbone's layers that this neck reads, from fine to coarse."""
        return (self.tap,)

    def count_maps(self) -> int:
        """Returns how many feature maps it makes."""
        return self.num_maps


@dataclass(frozen=True, kw_only=True)
class Pyramid(Neck):
    """Base of the necks that make one map for each level; not a neck itself."""

    min_level: Level = 3
    """Finest level; the map of level l has a stride of 2^l pixels."""
    max_level: Level = 7
    """Coarsest level."""

    def taps_of(self, backbone: Backbone) -> tuple[str, ...]:
        """Returns the backbone's layers that this neck reads, from fine to coarse."""
        return tuple(
            layer
            for level, layer in backbone.levels.items()
            if self.min_level <= level <= self.max_level
        )

    def count_maps(self) -> int:
        """Returns how many feature maps it makes."""
        return self.max_level - self.min_level + 1


@dataclass(frozen=True, kw_only=True)
class Identity(Pyramid, kind="identity"):
    """The levels of the backbone unchanged, for backbones that are pyramids themselves."""


@dataclass(frozen=True, kw_only=True)
class Fpn(Pyramid, kind="fpn"):
    """Feature pyramid network (arXiv:1612.03144).

    Levels up to the backbone's last one are summed top-down; the top is the plain projection.
    Coarser levels are strided convolutions of it.
    """

    depth: OptionalChannels = 256
    """Channels of every feature map, before the depth multiplier."""
    depth_multiplier: Multiplier = 1.0
    """Factor on the channels."""
    min_depth: Channels = 16
    """No layer has fewer channels than this."""
    depthwise: bool = False
    """Separable 3x3 convolutions instead of full ones (FPNLite)."""
    pointwise_defaults: bool = False
    """1x1 kernels of separable convolutions have the defaults of Keras, Glorot's uniform
    distribution and no penalty, as in the `_keras` extractors."""
    top_down: Literal["sum", "smoothed"] = "sum"
    """What a level passes to the next finer one: the plain sum, or the sum after its 3x3
    convolution as in the `_keras` extractors."""
    explicit_padding: bool = False
    """Pad strided convolutions alike on all sides; maps of odd sides are then cut to fit."""
    conv: ConvHyperparams = _FEATURES
    """Hyperparameters of the 3x3 convolutions; projections have a bias and nothing else."""


@dataclass(frozen=True, kw_only=True)
class RetinaNetFpn(Pyramid, kind="retinanet_fpn"):
    """RetinaNet's feature pyramid (arXiv:1708.02002).

    It differs from `fpn`: the top of the sums has a 3x3 convolution too, coarser levels are made
    from its output, and every level is normalised last, after coarser ones were made from it.
    """

    depth: OptionalChannels = 256
    """Channels of every feature map."""
    depthwise: bool = False
    """Separable convolutions instead of full ones, the 1x1 too."""
    coarse_from: Literal["output", "tap"] = "output"
    """What the first level above the backbone's is made from: the output of the level below, or the
    backbone's coarsest tap, as in torchvision."""
    conv: ConvHyperparams = _TPU_FEATURES
    """Hyperparameters of all convolutions; only coarse levels are activated, before the next one is
    made from them."""


@dataclass(frozen=True, kw_only=True)
class NasFpnNode:
    """One node of NAS-FPN's cell: two maps are combined, activated and convolved."""

    level: Level = 4
    """Level of the map that it makes; both inputs are brought to it."""
    combine: Literal["sum", "attention"] = "sum"
    """`attention`: the sum of the coarser input and the other one times, channel by channel, the
    sigmoid of the coarser input's maximum."""
    inputs: tuple[NodeNumber, ...] = (0, 1)
    """Two numbers: the maps that enter the cell from 0, fine to coarse, then the nodes."""
    output: bool = False
    """Whether it is the cell's map of its level. It then also adds all maps of this level that no
    earlier node has read."""


_NAS_FPN_CELL = (
    NasFpnNode(level=4, combine="attention", inputs=(1, 3)),
    NasFpnNode(level=4, inputs=(1, 5)),
    NasFpnNode(level=3, inputs=(0, 6), output=True),
    NasFpnNode(level=4, inputs=(6, 7), output=True),
    NasFpnNode(level=5, combine="attention", inputs=(7, 8), output=True),
    NasFpnNode(level=7, combine="attention", inputs=(6, 9), output=True),
    NasFpnNode(level=6, combine="attention", inputs=(9, 10), output=True),
)


@dataclass(frozen=True, kw_only=True)
class NasFpn(Pyramid, kind="nas_fpn"):
    """NAS-FPN: a pyramid with a cell that was found by search (arXiv:1904.07392).

    Levels that the backbone lacks are max-pooled from the next finer one. Maps are brought to
    another level by max pooling or nearest-neighbour upsampling.
    """

    depth: OptionalChannels = 256
    """Channels of every feature map; bottlenecks return four times as many."""
    num_repeats: Repeats = 5
    """Cells in sequence."""
    depthwise: bool = False
    """Separable convolutions instead of full ones, the 1x1 too."""
    block: Literal["conv", "bottleneck"] = "conv"
    """Block of a node after combination and activation: a 3x3 convolution, or a ResNet bottleneck
    of full convolutions."""
    drop_connect_rate: FractionBelowOne = 0.0
    """Share of the images for which a bottleneck is its shortcut alone in training."""
    drop_block: DropBlock | None = None
    """Applied after every convolution of a node in training; None: nowhere."""
    sum_only: bool = False
    """Combine by sums whatever the nodes say."""
    cell: tuple[NasFpnNode, ...] = _NAS_FPN_CELL
    """The nodes of the cell, in the order of their computation."""
    conv: ConvHyperparams = _TPU_FEATURES
    """Hyperparameters of all convolutions; the activation precedes a node's block."""
    block_conv: ConvHyperparams | None = None
    """Hyperparameters of the convolutions inside bottlenecks, if different; the activation follows
    them too."""


@dataclass(frozen=True, kw_only=True)
class BiFpn(Pyramid, kind="bifpn"):
    """EfficientDet's bidirectional feature pyramid (arXiv:1911.09070).

    Levels that the backbone lacks are max-pooled from the next finer one. Each repetition sums maps
    of neighbouring levels from coarse to fine, and then from fine to coarse.
    """

    depth: Channels = 64
    """Channels of every feature map."""
    num_repeats: Repeats = 3
    """How often maps are summed in both directions."""
    combine: Literal["fast_attention", "weighted_sum", "sum"] = "fast_attention"
    """Sum of maps: each has a learnt weight, of at least 0 and divided by the sum of the weights;
    or of any value; or none."""
    conv: ConvHyperparams = _BIFPN
    """Hyperparameters of all convolutions; the activation precedes the separable one of a sum."""


# The original's, which no config changes.
_MNASFPN = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=1e-4),
    initializer=VarianceScaling(factor=2.0, mode="fan_in", exact_cut=True),
    batch_norm=BatchNorm(decay=0.99, epsilon=0.01, center=True, scale=True),
)
# He's rule for a depthwise kernel of 3x3.
_SEPARABLE = TruncatedNormal(stddev=0.536)


@dataclass(frozen=True, kw_only=True)
class MnasFpn(Pyramid, kind="mnasfpn"):
    """MnasFPN: a pyramid of inverted residuals, found by search for phones (arXiv:1912.01106).

    Levels that the backbone lacks are max-pooled from the next finer one and projected. A block of
    a cell widens two maps, adds them at its level, filters and narrows the sum. A finer map is
    max-pooled before it is widened, a coarser one repeated after that.
    """

    max_level: Level = 6
    """Coarsest level. The cell has four levels, so that it is `min_level` + 3."""
    depth: Channels = 48
    """Channels of every feature map, before the depth multiplier."""
    num_repeats: Repeats = 4
    """Cells in sequence."""
    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    min_depth: Channels = 16
    """No layer has fewer channels than this."""
    explicit_padding: bool = False
    """Pad max pooling by zeros, which may be the maximum, alike on all sides."""
    separable_initializer: Initializer = _SEPARABLE
    """Distribution of fresh kernels of separable convolutions, the 1x1 too."""
    conv: ConvHyperparams = _MNASFPN
    """Hyperparameters of all convolutions; the activation follows the sum of a block. The
    projections of coarse levels have no penalty."""
