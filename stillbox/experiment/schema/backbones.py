"""From the network input to taps of falling resolution (fact sheet 3.2)."""

from dataclasses import dataclass, field
from typing import ClassVar

from stillbox.experiment.schema.layers import ConvHyperparams


@dataclass(frozen=True, kw_only=True)
class MobileNetV1:
    """MobileNet v1 up to its last pointwise convolution (arXiv:1704.04861; fact sheet 3.2)."""

    kind: ClassVar[str] = "mobilenet_v1"
    depth_multiplier: float = 1.0
    """Factor on every channel count."""
    min_depth: int = 16
    """No layer has fewer channels than this."""
    conv: ConvHyperparams = field(default_factory=ConvHyperparams)
    """Hyperparameters of the base network."""


Backbone = MobileNetV1
