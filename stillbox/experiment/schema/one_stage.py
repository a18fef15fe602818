"""One-stage detectors: SSD and RetinaNet."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from stillbox.experiment.schema.anchors import *
from stillbox.experiment.schema.backbones import *
from stillbox.experiment.schema.heads import *
from stillbox.experiment.schema.layers import *
from stillbox.experiment.schema.losses import *
from stillbox.experiment.schema.matching import *
from stillbox.experiment.schema.model import *
from stillbox.experiment.schema.necks import *
from stillbox.experiment.schema.postprocessing import *
from stillbox.experiment.schema.ranges import *


@dataclass(frozen=True, kw_only=True)
class PixelNormalization:
    """`(pixel - mean) / std`, one number for each channel, pixels in 0..255."""

    mean: tuple[Real, ...] = (127.5, 127.5, 127.5)
    """Subtracted first. The default maps 0..255 to -1..1, the input range of MobileNets."""
    std: tuple[Positive, ...] = (127.5, 127.5, 127.5)
    """Divides afterwards."""


@dataclass(frozen=True, kw_only=True)
class OneStage(Model, kind="one_stage"):
    """Anchor-based detector of one stage: backbone, neck, head, anchors, targets, losses, NMS."""

    pad_to_multiple: Side = 1
    """Pad the normalised network input with zeros, at the bottom and right, to a multiple of this
    side. Anchors are relative to the unpadded input, as in the original."""
    pixels: PixelNormalization = field(default_factory=PixelNormalization)
    """From 0..255 to the input range of the backbone."""
    backbone: Backbone = field(default_factory=MobileNetV1)
    """From the network input to taps of falling resolution."""
    neck: Neck = field(default_factory=SsdLayers)
    """From taps to the feature maps that carry anchors."""
    head: Head = field(default_factory=ConvolutionalHead)
    """From feature maps to box encodings and class logits."""
    background_class: bool = True
    """Logit slot 0 is the background, whether or not a target uses it."""
    freeze_batch_norm: bool = False
    """Normalise with the moving statistics in training and leave them unchanged."""
    anchors: Anchors = field(default_factory=SsdAnchors)
    """The boxes that predictions are relative to."""
    box_coder: BoxCoder = field(default_factory=FasterRcnnBoxCoder)
    """The form in which a box is written relative to its anchor."""
    matcher: Matcher = field(default_factory=ArgmaxMatcher)
    """Assigns ground-truth boxes to anchors."""
    similarity: Similarity = field(default_factory=IouSimilarity)
    """What the matcher compares."""
    loss: Loss = field(default_factory=Loss)
    """What training minimises."""
    postprocessing: Postprocessing = field(default_factory=Postprocessing)
    """From raw predictions to detections."""

    @property
    def network_size(self) -> tuple[int, int]:
        """Height and width in pixels of the network input with its padding."""
        height, width = self.resizer.input_size
        multiple = max(self.pad_to_multiple, 1)
        return height + -height % multiple, width + -width % multiple

    @property
    def nms(self) -> Nms:
        """The suppression that ends in detections."""
        return self.postprocessing.nms

    def with_max_detections(self, most: int) -> Self:
        """Returns the model with another `max_detections`."""
        nms = replace(self.nms, max_total=most)
        return replace(self, postprocessing=replace(self.postprocessing, nms=nms))

    @property
    def normalization(self) -> PixelNormalization:
        """From 0..255 to the input range of the backbone."""
        return self.pixels

    @property
    def anchor_stage(self) -> "OneStage":
        """Itself."""
        return self

    @property
    def normalizes_per_replica(self) -> bool:
        """Whether the loss is normalised per replica (`devices.replicas`)."""
        return self.loss.normalizer == "per_replica"

    @property
    def parts(self) -> Mapping[str, Any]:
        """The configuration of each part by its name, the first word of its parameters' paths."""
        return {"backbone": self.backbone, "neck": self.neck, "head": self.head}

    @property
    def class_logits(self) -> int:
        """Class logits of one box, that of the background included."""
        return self.num_classes + self.background_class

    def describe(self) -> dict[str, str]:
        """Returns the names of the parts, for reports."""
        return {
            "backbone": self.backbone.kind,
            "neck": self.neck.kind,
            "head": self.head.kind,
            "anchors": self.anchors.kind,
            "classification loss": self.loss.classification.kind,
            "localization loss": self.loss.localization.kind,
        }

    def convolutions(self) -> dict[str, ConvHyperparams]:
        """Returns the hyperparameters of all parts that have any, by their path in the model."""
        convs = {
            "backbone.conv": self.backbone.conv,
            "neck.conv": self.neck.conv,
            "head.conv": self.head.conv,
        }
        return {path: conv for path, conv in convs.items() if conv is not None}
