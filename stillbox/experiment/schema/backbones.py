"""MobileNet v1 and v2, ResNet, Inception, and EfficientNet (arXiv:1905.11946, 1911.09070)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, ClassVar, Literal

from stillbox.experiment.schema.layers import (
    L2,
    Activation,
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
    Fraction,
    FractionBelowOne,
    Items,
    Multiplier,
    OptionalChannels,
    PositiveInt,
    Range,
)

# The arg scopes of slim, which hold where a config does not override them.
_MOBILENET = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=4e-5),
    initializer=TruncatedNormal(stddev=0.09),
    batch_norm=BatchNorm(decay=0.9997, epsilon=0.001, center=True, scale=True),
)
# slim does not regularise its depthwise kernels.
_MOBILENET_V2 = replace(_MOBILENET, regularize_depthwise=False)
_RESNET = ConvHyperparams(
    activation="relu",
    regularizer=L2(weight=1e-4),
    initializer=VarianceScaling(factor=2.0, mode="fan_in"),
    batch_norm=BatchNorm(decay=0.997, epsilon=1e-5, center=True, scale=True),
)
_INCEPTION = ConvHyperparams(
    activation="relu",
    regularizer=L2(weight=4e-5),
    initializer=TruncatedNormal(stddev=0.1),
    batch_norm=BatchNorm(decay=0.9997, epsilon=0.001, center=True, scale=True),
)
# Kernels and biases alike are penalised, and drawn by Glorot's rule.
_INCEPTION_RESNET = replace(
    _INCEPTION,
    regularize_bias=True,
    initializer=VarianceScaling(factor=1.0, uniform=True, mode="fan_avg"),
    batch_norm=BatchNorm(decay=0.9997, epsilon=0.001, center=True, scale=False),
)


@dataclass(frozen=True, kw_only=True)
class MobileNetV1(Backbone, kind="mobilenet_v1"):
    """MobileNet v1 up to its last pointwise convolution (arXiv:1704.04861)."""

    layers: ClassVar[tuple[str, ...]] = (
        "conv_0",
        *(f"conv_{pair}_{part}" for pair in range(1, 14) for part in ("depthwise", "pointwise")),
    )
    levels: ClassVar[Mapping[int, str]] = {
        2: "conv_3_pointwise",
        3: "conv_5_pointwise",
        4: "conv_11_pointwise",
        5: "conv_13_pointwise",
    }
    min_side: ClassVar[int] = 33

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count."""
    min_depth: Channels = 16
    """No layer has fewer channels than this."""
    inner_multiplier: Multiplier = 1.0
    """Factor on all but `last_depths` before that, rounded down: the `_keras` extractors multiply
    twice."""
    last_depths: Annotated[
        tuple[Channels, ...], Items(lengths=(2,), fix="give two, such as [1024, 1024]")
    ] = (1024, 1024)
    """Channels of the last two pairs before the multiplier; depthwise pyramids have 512, 256."""
    last_layer: str = ""
    """Layers up to this one exist, are penalised and saved, even where nothing reads them, as in
    the original's checkpoints; empty: up to the last tap."""
    explicit_padding: bool = False
    """Pad strided convolutions alike on all sides instead of as little as possible."""
    conv: ConvHyperparams = _MOBILENET
    """Hyperparameters of the base network."""


def _blocks() -> tuple[str, ...]:
    """`block_k` is the sum that block k hands on, the others are the layers inside it."""
    inside = ("_expand", "_depthwise", "_project", "")
    every = (f"block_{block}{part}" for block in range(17) for part in inside)
    return tuple(name for name in every if name != "block_0_expand")


@dataclass(frozen=True, kw_only=True)
class MobileNetV2(Backbone, kind="mobilenet_v2"):
    """MobileNet v2: inverted residuals with linear bottlenecks (arXiv:1801.04381)."""

    min_side: ClassVar[int] = 33

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    min_depth: Channels = 16
    """No bottleneck has fewer channels than this."""
    channels: Literal["slim", "keras"] = "slim"
    """`keras`: as in the `_keras` extractors, which decide on shortcuts by the channels before
    `min_depth`, round bottlenecks down first, and widen the last convolution by no multiplier above
    1."""
    last_depth: OptionalChannels = 1280
    """Channels of the last convolution before the multiplier; depthwise pyramids have 256. 0: there
    is none, and level 5 is block 16, as in front of MnasFPN."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    explicit_padding: bool = False
    """Pad strided convolutions alike on all sides instead of as little as possible."""
    depthwise_initializer: Initializer | None = None
    """Distribution of fresh depthwise kernels; None: as in `conv`."""
    conv: ConvHyperparams = _MOBILENET_V2
    """Hyperparameters of the base network."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order of their computation."""
        return ("conv_0", *_blocks(), *(("conv_1",) if self.last_depth else ()))

    @property
    def levels(self) -> Mapping[int, str]:
        """The last layer of each level; level l has a stride of 2^l pixels."""
        return {2: "block_2", 3: "block_5", 4: "block_12", 5: self.layers[-1]}


@dataclass(frozen=True, kw_only=True)
class ResNetV1(Backbone, kind="resnet_v1"):
    """ResNet v1 with bottleneck units (arXiv:1512.03385).

    The blocks have the strides 4, 8, 16 and 32: each is tapped before it is subsampled.
    """

    layers: ClassVar[tuple[str, ...]] = ("root", "block_1", "block_2", "block_3", "block_4")
    min_side: ClassVar[int] = 129

    depth: PositiveInt = 50
    """Layers by the usual count: 50, 101 or 152."""
    output_stride: Literal[8, 16, 32] = 32
    """Stride of the last block. Blocks that it leaves without a stride of their own dilate their
    3x3 convolutions instead (`first_stage_features_stride`)."""
    stride_in_unit: bool = False
    """The last unit of a block strides itself, as in slim's network, and the block is tapped behind
    that. False: the block's output is subsampled, as by slim with `store_non_strided_activations`
    and by Keras. The numbers differ only where batch norms of that unit are trained."""
    last_layer: str = ""
    """Blocks up to this one exist even where nothing reads them; empty: up to the last tap."""
    unit_activation: Activation = "relu"
    """Applied to the sum at the end of a unit; `conv.activation` is for the layers inside."""
    conv: ConvHyperparams = _RESNET
    """Hyperparameters of the base network."""

    @property
    def levels(self) -> Mapping[int, str]:
        """The last block of each level; with an `output_stride` below 32, without the fourth."""
        if self.stride_in_unit:
            strided = {3: "block_1", 4: "block_2", 5: "block_3"}
            last = {32: {5: "block_4"}, 16: {4: "block_3"}, 8: {3: "block_3"}}[self.output_stride]
            return {level: strided[level] for level in range(3, max(last))} | last
        if self.output_stride == 32:
            return {2: "block_1", 3: "block_2", 4: "block_3", 5: "block_4"}
        if self.output_stride == 16:
            return {2: "block_1", 3: "block_2", 4: "block_3"}
        return {2: "block_1", 3: "block_3"}


_MIXED = ("3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b", "5c")


@dataclass(frozen=True, kw_only=True)
class InceptionV2(Backbone, kind="inception_v2"):
    """Inception v2: Inception with batch normalisation (arXiv:1502.03167)."""

    layers: ClassVar[tuple[str, ...]] = (
        "conv_1a",
        "pool_2a",
        "conv_2b",
        "conv_2c",
        "pool_3a",
        *(f"mixed_{name}" for name in _MIXED),
    )
    levels: ClassVar[Mapping[int, str]] = {
        2: "conv_2c",
        3: "mixed_3c",
        4: "mixed_4e",
        5: "mixed_5c",
    }
    min_side: ClassVar[int] = 33

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count."""
    min_depth: Channels = 16
    """No layer has fewer channels than this."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = _INCEPTION
    """Hyperparameters of the base network. The first convolution, and most 1x1 convolutions, are
    drawn with deviations of slim's own: 1, .09 and .1."""


@dataclass(frozen=True, kw_only=True)
class ResNet(Backbone, kind="resnet"):
    """ResNet with the stride inside its first blocks (arXiv:1512.03385).

    Basic blocks of two 3x3 convolutions up to 34 layers, bottlenecks above. The first block of a
    group strides in its 3x3 convolution and projects its shortcut where shapes ask for it.
    `resnet_v1` is the same network where slim and the Object Detection API stride differently.
    """

    layers: ClassVar[tuple[str, ...]] = ("stem", "group_1", "group_2", "group_3", "group_4")
    min_side: ClassVar[int] = 33

    depth: PositiveInt = 50
    """Layers by the usual count: 10, 14, 18, 26, 34, 50, 101, 152 or 200."""
    group_strides: Annotated[
        tuple[Annotated[int, Range(1, 2)], ...],
        Items(lengths=(4,), fix="give four, such as [1, 2, 2, 2]"),
    ] = (1, 2, 2, 2)
    """Stride of each of the four groups; SSD ResNet-34 keeps group 3 at the stride of group 2."""
    last_layer: str = ""
    """Groups up to this one exist even where nothing reads them; empty: up to the last tap."""
    pool_padding: Literal["same", "symmetric"] = "same"
    """Padding of the 3x3 max pooling: as little as possible, at the end (TensorFlow), or one pixel
    on all sides (torchvision). Weights want the one that they were trained with."""
    explicit_padding: bool = True
    """Pad strided convolutions alike on all sides instead of as little as possible, as "Object
    Detection Models on TPU" and torchvision do; TensorFlow Model Garden does not."""
    space_to_depth_stem: bool = False
    """Compute the 7x7 convolution of stride 2 as a 4x4 one over 2x2 blocks of pixels: the same
    numbers and parameters, with 12 input channels instead of 3, which accelerators like better.
    Sides of the network input must be even."""
    zero_last_scale: bool = True
    """The last batch norm of each block starts with a factor of 0, so that blocks start as
    identities (arXiv:1706.02677, 5.1)."""
    project_first_block: bool = False
    """The first block of every group projects its shortcut, also where shapes agree, as Google's
    detectors for TPUs do; it shows in group 1 of basic blocks alone."""
    drop_connect_rate: FractionBelowOne = 0.0
    """Probability with which a block of group 4 is left out for an image in training, its shortcut
    apart; groups 1, 2 and 3 have 2/5, 3/5 and 4/5 of it (arXiv:1603.09382)."""
    drop_block: DropBlock | None = None
    """Applied behind every convolution of a block and on its shortcut; None: nowhere."""
    conv: ConvHyperparams = _RESNET
    """Hyperparameters of the base network."""

    @property
    def levels(self) -> Mapping[int, str]:
        """Groups by level; level l has a stride of 2^l pixels. Of equal ones the last counts."""
        levels, stride = {}, 4
        for name, factor in zip(self.layers[1:], self.group_strides, strict=False):
            stride *= factor
            levels[stride.bit_length() - 1] = name
        return levels


_EFFICIENTNET = ConvHyperparams(
    activation="swish",
    regularizer=L2(weight=1e-5),
    regularize_bias=True,
    regularize_depthwise=False,
    initializer=VarianceScaling(factor=2.0, mode="fan_out", exact_cut=True),
    batch_norm=BatchNorm(decay=0.99, epsilon=0.001, center=True, scale=True),
)
_EFFICIENTNET_LITE = replace(_EFFICIENTNET, activation="relu6")

# Blocks of each stack before the factor, and the one that a detector taps by its level. The
# original has the indices of the smallest network in all sizes.
_EFFICIENTNET_BLOCKS = (1, 2, 2, 3, 3, 4, 1)
_TAPS = {1: (0, 0), 2: (1, 1), 3: (2, 1), 4: (4, 2), 5: (6, 0)}


@dataclass(frozen=True, kw_only=True)
class EfficientNet(Backbone, kind="efficientnet"):
    """EfficientNet without its last convolution; a layer `stack_{s}_block_{b}` is a block's sum.

    Its neck in EfficientDet is `bifpn`.
    """

    min_side: ClassVar[int] = 129
    scales_stem: ClassVar[bool] = True
    """Whether the width coefficient holds for the first convolution too."""

    width_coefficient: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    depth_coefficient: Annotated[float, Range(0.01, 5)] = 1.0
    """Factor on the number of blocks of every stack, rounded up."""
    se_ratio: Fraction = 0.25
    """Share of a block's input channels to which its gate squeezes; 0: there is no gate."""
    drop_connect_rate: FractionBelowOne = 0.2
    """Probability with which the last block is left out for an image in training, its shortcut
    apart; block i of n has i/n of it (arXiv:1603.09382)."""
    last_layer: str = ""
    """Blocks up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = _EFFICIENTNET
    """Hyperparameters of all convolutions; convolutions of the gates have biases and no norm."""

    def count_blocks(self) -> tuple[int, ...]:
        """Returns the number of blocks of each stack."""
        return tuple(ceil(blocks * self.depth_coefficient) for blocks in _EFFICIENTNET_BLOCKS)

    @property
    def layers(self) -> tuple[str, ...]:
        """The first convolution, then all blocks."""
        counts = enumerate(self.count_blocks())
        return ("stem", *(f"stack_{s}_block_{b}" for s, count in counts for b in range(count)))

    @property
    def levels(self) -> Mapping[int, str]:
        """Blocks by level: in larger networks they lie inside of their stacks, as in the original
        (`ssd_efficientnet_bifpn_feature_extractor.py`)."""
        counts = self.count_blocks()
        return {
            level: f"stack_{stack}_block_{min(block, counts[stack] - 1)}"
            for level, (stack, block) in _TAPS.items()
        }


EFFICIENTNET_SIZES: Mapping[str, EfficientNet] = {
    "b0": EfficientNet(),
    "b1": EfficientNet(width_coefficient=1.0, depth_coefficient=1.1),
    "b2": EfficientNet(width_coefficient=1.1, depth_coefficient=1.2),
    "b3": EfficientNet(width_coefficient=1.2, depth_coefficient=1.4),
    "b4": EfficientNet(width_coefficient=1.4, depth_coefficient=1.8),
    "b5": EfficientNet(width_coefficient=1.6, depth_coefficient=2.2),
    "b6": EfficientNet(width_coefficient=1.8, depth_coefficient=2.6),
    "b7": EfficientNet(width_coefficient=2.0, depth_coefficient=3.1),
}
"""The members of the family by the names that their authors give them."""


@dataclass(frozen=True, kw_only=True)
class EfficientNetLite(EfficientNet, kind="efficientnet_lite"):
    """EfficientNet for phones: relu6 and no gates, and its ends are not scaled.

    The first convolution keeps its channels, the first and the last stack their one block
    (`tpu/models/official/efficientnet/lite`). The layer of a level is its last block in all sizes.
    """

    scales_stem: ClassVar[bool] = False

    se_ratio: Fraction = 0.0
    """Share of a block's input channels to which its gate squeezes; 0: there is no gate."""
    conv: ConvHyperparams = _EFFICIENTNET_LITE
    """Hyperparameters of all convolutions."""

    def count_blocks(self) -> tuple[int, ...]:
        """Returns the number of blocks of each stack."""
        first, *_, last = _EFFICIENTNET_BLOCKS
        return first, *super().count_blocks()[1:-1], last

    @property
    def levels(self) -> Mapping[int, str]:
        """Blocks by level (`efficientnet_model.py`, `reduction_1` to `reduction_5`)."""
        counts = self.count_blocks()
        return {
            level: f"stack_{stack}_block_{counts[stack] - 1}" for level, (stack, _) in _TAPS.items()
        }


EFFICIENTNET_LITE_SIZES: Mapping[str, EfficientNetLite] = {
    "lite0": EfficientNetLite(),
    "lite1": EfficientNetLite(width_coefficient=1.0, depth_coefficient=1.1),
    "lite2": EfficientNetLite(width_coefficient=1.1, depth_coefficient=1.2),
    "lite3": EfficientNetLite(width_coefficient=1.2, depth_coefficient=1.4),
    "lite4": EfficientNetLite(width_coefficient=1.4, depth_coefficient=1.8),
}
"""The members of the family by the names that their authors give them."""


_INCEPTION_BLOCKS = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")


@dataclass(frozen=True, kw_only=True)
class InceptionV3(Backbone, kind="inception_v3"):
    """Inception v3: factorised convolutions (arXiv:1512.00567).

    Its strided layers are not padded, so that maps are smaller than the image by more than their
    stride, and no pyramid fits.
    """

    layers: ClassVar[tuple[str, ...]] = (
        *("conv_1a", "conv_2a", "conv_2b", "pool_3a", "conv_3b", "conv_4a", "pool_5a"),
        *(f"mixed_{name}" for name in _INCEPTION_BLOCKS),
    )
    levels: ClassVar[Mapping[int, str]] = {5: "mixed_7c"}
    # 75 pixels are 37, 35, 17, 15, 7, 3 and 1.
    min_side: ClassVar[int] = 75

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count."""
    min_depth: Channels = 16
    """No layer has fewer channels than this."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = InceptionV2().conv
    """Hyperparameters of the base network."""


@dataclass(frozen=True, kw_only=True)
class InceptionResNetV2(Backbone, kind="inception_resnet_v2"):
    """Inception ResNet v2 up to its twenty middle blocks (arXiv:1602.07261).

    All layers are padded, so that maps are aligned with the image. The rest of the network is the
    box head `inception_resnet_v2_block`.
    """

    layers: ClassVar[tuple[str, ...]] = (
        *("conv_1a", "conv_2a", "conv_2b", "pool_3a", "conv_3b", "conv_4a", "pool_5a"),
        "mixed_5b",
        *(f"block35_{block}" for block in range(1, 11)),
        "mixed_6a",
        *(f"block17_{block}" for block in range(1, 21)),
    )
    min_side: ClassVar[int] = 33

    depth_multiplier: Multiplier = 1.0
    """Factor on the channel counts of all convolutions but those that end a block."""
    min_depth: Channels = 16
    """None of these layers has fewer channels than this."""
    output_stride: Literal[8, 16] = 16
    """Stride of the last map. At 8, `mixed_6a` has none, and the kernels of the blocks behind it
    are dilated (`first_stage_features_stride`)."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = _INCEPTION_RESNET
    """Hyperparameters of the base network. The convolution that ends a block has a bias and no
    norm."""

    @property
    def levels(self) -> Mapping[int, str]:
        """The last layer of each level; at an `output_stride` of 8 the third is the last."""
        if self.output_stride == 8:
            return {2: "conv_4a", 3: "block17_20"}
        return {2: "conv_4a", 3: "block35_10", 4: "block17_20"}
