"""From taps to the feature maps that carry anchors (fact sheet 3.2)."""

from dataclasses import dataclass, field
from typing import ClassVar

from stillbox.experiment.schema.layers import ConvHyperparams


@dataclass(frozen=True, kw_only=True)
class SsdLayers:
    """SSD's extra layers: each halves the map with a 1x1 and a strided 3x3 convolution."""

    kind: ClassVar[str] = "ssd_layers"
    taps: tuple[str, ...] = ("conv_11_pointwise", "conv_13_pointwise")
    """Backbone layers that feed the first feature maps, from fine to coarse."""
    extra_depths: tuple[int, ...] = (512, 256, 256, 128)
    """Channels of each extra feature map before the depth multiplier."""
    depth_multiplier: float = 1.0
    """Factor on the extra channel counts."""
    min_depth: int = 16
    """No extra layer has fewer channels than this."""
    conv: ConvHyperparams = field(default_factory=ConvHyperparams)
    """Hyperparameters of the extra layers."""


Neck = SsdLayers
