"""Backbones for phones and edge devices that architecture search found.

Their blocks are inverted residuals and variants of them (`models/backbones/mobilenet_v3.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

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
    Multiplier,
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
    """Hyperparameters of the base network. The activation is that of the first and last convolution
    and of the later blocks; the earlier blocks have relu."""


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
    levels: ClassVar[Mapping[int, str]] = {
        2: "block_4",
        3: "block_8",
        4: "block_16",
        5: "block_21",
    }
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
    levels: ClassVar[Mapping[int, str]] = {
        2: "block_1",
        3: "block_5",
        4: "block_13",
        5: "block_18",
    }

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
