"""From taps to the feature maps that carry anchors (fact sheet 3.2)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from stillbox.experiment.schema.backbones import Backbone
from stillbox.experiment.schema.layers import L2, BatchNorm, ConvHyperparams, TruncatedNormal

# Those of most published configs; a convolution without normalisation is nobody's wish here.
_FEATURES = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=4e-5),
    initializer=TruncatedNormal(stddev=0.03),
    batch_norm=BatchNorm(decay=0.997, epsilon=0.001, center=True, scale=True),
)


@dataclass(frozen=True, kw_only=True)
class SsdLayers:
    """SSD's extra layers: each shrinks the map with a 1x1 and a 3x3 convolution."""

    kind: ClassVar[str] = "ssd_layers"
    taps: tuple[str, ...] = ("conv_11_pointwise", "conv_13_pointwise")
    """Backbone layers that feed the first feature maps, from fine to coarse."""
    extra_depths: tuple[int, ...] = (512, 256, 256, 128)
    """Channels of each extra feature map before the depth multiplier."""
    extra_strides: tuple[int, ...] = ()
    """Stride of each extra 3x3 convolution; empty: 2 for all. One of stride 1 is not padded, as the
    coarsest two of SSD300: its map loses a pixel at every edge."""
    depth_multiplier: float = 1.0
    """Factor on the extra channel counts."""
    min_depth: int = 16
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
class Ppn:
    """Pooling pyramid network: one map, and its max-pooled halves (arXiv:1807.03284)."""

    kind: ClassVar[str] = "ppn"
    tap: str = "conv_11_pointwise"
    """Backbone layer that is pooled."""
    num_maps: int = 6
    """Feature maps, the tap's own included."""
    depth: int = 0
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
class Pyramid:
    """What all necks of one map a level have in common; itself no neck."""

    min_level: int = 3
    """Finest level; the map of level l has a stride of 2^l pixels."""
    max_level: int = 7
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
class Identity(Pyramid):
    """The backbone's own levels as they are, for one that is a pyramid itself."""

    kind: ClassVar[str] = "identity"


@dataclass(frozen=True, kw_only=True)
class Fpn(Pyramid):
    """Feature pyramid network (arXiv:1612.03144; fact sheet 3.2).

    Levels up to the backbone's last one come down the pyramid, and the top of them is the raw
    projection; coarser levels are made from that one by strided convolutions.
    """

    kind: ClassVar[str] = "fpn"
    depth: int = 256
    """Channels of every feature map, before the depth multiplier."""
    depth_multiplier: float = 1.0
    """Factor on the channels."""
    min_depth: int = 16
    """No layer has fewer channels than this."""
    depthwise: bool = False
    """Separable 3x3 convolutions instead of full ones (FPNLite)."""
    top_down: Literal["sum", "smoothed"] = "sum"
    """What a level hands down: the plain sum, or the sum after its 3x3 convolution, which is what
    the `_keras` extractors do."""
    explicit_padding: bool = False
    """Pad strided convolutions alike on all sides; maps of odd sides are then cut to fit."""
    conv: ConvHyperparams = _FEATURES
    """Hyperparameters of the 3x3 convolutions; projections have a bias and nothing else."""


Neck = SsdLayers | Ppn | Fpn | Identity
