"""The detector: from pixels to boxes, one small value for each of its parts."""

from dataclasses import dataclass, field
from typing import Literal

from stillbox.experiment.schema.anchors import Anchors, SsdAnchors
from stillbox.experiment.schema.backbones import Backbone, MobileNetV1
from stillbox.experiment.schema.heads import ConvolutionalHead, Head
from stillbox.experiment.schema.layers import ConvHyperparams
from stillbox.experiment.schema.losses import Loss
from stillbox.experiment.schema.matching import (
    ArgmaxMatcher,
    BoxCoder,
    FasterRcnnBoxCoder,
    IouSimilarity,
    Matcher,
    Similarity,
)
from stillbox.experiment.schema.necks import Identity, Neck, SsdLayers
from stillbox.experiment.schema.postprocessing import Postprocessing
from stillbox.experiment.schema.resizers import FixedShapeResizer, Resizer


@dataclass(frozen=True, kw_only=True)
class PixelNormalization:
    """`(pixel - mean) / std`, one number for each channel, pixels in 0..255."""

    mean: tuple[float, ...] = (127.5, 127.5, 127.5)
    """Subtracted first. The default maps 0..255 to -1..1, as the MobileNet family wants."""
    std: tuple[float, ...] = (127.5, 127.5, 127.5)
    """Divides afterwards."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """An anchor-based detector: resizer, backbone, neck, head, anchors, targets, losses, NMS."""

    num_classes: int = 90
    """Foreground classes; `class_slots` says how many a label map needs."""
    class_slots: Literal["label_map_id", "contiguous"] = "label_map_id"
    """Which class of the label map class index c stands for: the one of id c + 1, so that gaps of
    the ids are slots that nothing uses and `num_classes` is the greatest id or more; or the c-th in
    the order of the ids, so that `num_classes` is their number."""
    resizer: Resizer = field(default_factory=FixedShapeResizer)
    """From an image of any size to the network input."""
    pad_to_multiple: int = 1
    """Pad the normalised network input with zeros, at the bottom and right, to a multiple of this
    side; anchors keep to the unpadded input, as in the original."""
    pixels: PixelNormalization = field(default_factory=PixelNormalization)
    """From 0..255 to what the backbone expects."""
    backbone: Backbone = field(default_factory=MobileNetV1)
    """From the network input to taps of falling resolution."""
    neck: Neck = field(default_factory=SsdLayers)
    """From taps to the feature maps that carry anchors."""
    head: Head = field(default_factory=ConvolutionalHead)
    """From feature maps to box encodings and class logits."""
    background_class: bool = True
    """Logit slot 0 is the background, whether or not any target uses it (fact sheet 1.3)."""
    freeze_batch_norm: bool = False
    """Normalise with the moving statistics in training and leave them alone."""
    anchors: Anchors = field(default_factory=SsdAnchors)
    """The boxes that predictions are relative to."""
    box_coder: BoxCoder = field(default_factory=FasterRcnnBoxCoder)
    """How a box is written relative to its anchor."""
    matcher: Matcher = field(default_factory=ArgmaxMatcher)
    """Which anchor answers for which ground truth box."""
    similarity: Similarity = field(default_factory=IouSimilarity)
    """What the matcher compares."""
    loss: Loss = field(default_factory=Loss)
    """What training minimises."""
    postprocessing: Postprocessing = field(default_factory=Postprocessing)
    """From raw predictions to detections."""

    def convolutions(self) -> dict[str, ConvHyperparams]:
        """Returns the hyperparameters of backbone, neck and head, of those that have any."""
        parts = {"backbone": self.backbone, "neck": self.neck, "head": self.head}
        return {name: part.conv for name, part in parts.items() if not isinstance(part, Identity)}
