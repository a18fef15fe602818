"""From crops to the features of the second stage.

The second halves of the original's `object_detection/models/faster_rcnn_*_feature_extractor.py`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from stillbox.experiment.schema.backbones import *
from stillbox.experiment.schema.layers import *
from stillbox.experiment.schema.ranges import *
from stillbox.experiment.variants import Variant

_FULLY_CONNECTED = ConvHyperparams(
    activation="relu",
    initializer=VarianceScaling(factor=1.0, uniform=True, mode="fan_avg"),
    batch_norm=BatchNorm(decay=0.99, epsilon=0.001, center=True, scale=True),
)


class BoxHead(Variant):
    """From crops to the features that boxes and classes are predicted from.

    Called as `(config, channels, size, options)`, channels and side of the crops; returns a
    `models.parts.Part` that maps crops `[N, S, S, C]` to `[N, D]` and has its `channels`, D.
    """

    ends_classifier: ClassVar[bool] = True
    """Whether it is the end of the classifier that its backbone is the beginning of."""

    @property
    def conv(self) -> ConvHyperparams | None:
        """Hyperparameters of its layers, if they come from the experiment."""
        return None


@dataclass(frozen=True, kw_only=True)
class ResNetBlockHead(BoxHead, kind="resnet_v1_block"):
    """The fourth block of ResNet v1, then the mean over the crop."""

    stride: Annotated[int, Range(1, 2)] = 1
    """Of its first unit: 1 in the original's first generation, 2 in its second."""
    unit_activation: Activation = "relu"
    """Applied to the sum at the end of a unit."""
    conv: ConvHyperparams = ResNetV1().conv
    """Hyperparameters of the block."""


@dataclass(frozen=True, kw_only=True)
class InceptionV2BlockHead(BoxHead, kind="inception_v2_block"):
    """The last three blocks of Inception v2, `mixed_5a` to `mixed_5c`, then the mean."""

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count."""
    min_depth: Channels = 16
    """No layer has fewer channels than this."""
    conv: ConvHyperparams = InceptionV2().conv
    """Hyperparameters of the blocks; most 1x1 convolutions are drawn as in the backbone."""


@dataclass(frozen=True, kw_only=True)
class FullyConnectedHead(BoxHead, kind="fully_connected"):
    """Two fully connected layers on the flattened crop; the first is normalised."""

    ends_classifier: ClassVar[bool] = False

    widths: tuple[Channels, ...] = (1024, 1024)
    """Outputs of each layer."""
    conv: ConvHyperparams = _FULLY_CONNECTED
    """Hyperparameters of the layers."""
