"""What every detector has, and the one-stage detectors, SSD and RetinaNet, with their heads.

A head leads from feature maps to box encodings and class logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol, Self

from stillbox.experiment.schema.anchors import Anchors, SsdAnchors
from stillbox.experiment.schema.backbones import MobileNetV1
from stillbox.experiment.schema.box_coders import BoxCoder, FasterRcnnBoxCoder
from stillbox.experiment.schema.data import FixedShapeResizer, Resizer
from stillbox.experiment.schema.detector_losses import DetectorLoss, Loss
from stillbox.experiment.schema.layers import (
    L2,
    Backbone,
    BatchNorm,
    ConvHyperparams,
    GroupNorm,
    Initializer,
    RandomNormal,
)
from stillbox.experiment.schema.matchers import (
    ArgmaxMatcher,
    IouSimilarity,
    Matcher,
    Similarity,
)
from stillbox.experiment.schema.necks import Neck, SsdExtraLayers
from stillbox.experiment.schema.postprocessing import Nms, Postprocessing
from stillbox.experiment.schema.ranges import (
    Channels,
    Classes,
    KernelSide,
    Layers,
    OptionalChannels,
    OptionalKernelSide,
    PerChannel,
    Positive,
    PositiveFraction,
    Range,
    Real,
    Side,
)
from stillbox.experiment.variants import RegisteredConfig
from stillbox.image_kind import RGB_8, ImageKind, per_channel


class AnchorStage(Protocol):
    """The section of a model that assigns ground-truth boxes to anchors."""

    @property
    def anchors(self) -> Anchors:
        """The boxes that predictions are relative to."""

    @property
    def box_coder(self) -> BoxCoder:
        """Encodes a box relative to its anchor."""

    @property
    def matcher(self) -> Matcher:
        """Assigns ground-truth boxes to anchors."""

    @property
    def similarity(self) -> Similarity:
        """What the matcher compares."""


@dataclass(frozen=True, kw_only=True)
class Model(RegisteredConfig):
    """A meta-architecture.

    Called as `(config, options)`; returns a `models.detector.Detector`.
    """

    num_classes: Classes = 90
    """Foreground classes; `class_slots` says how many a label map needs."""
    class_slots: Literal["label_map_id", "contiguous"] = "label_map_id"
    """Class of the label map that class index c stands for. `label_map_id`: the class of id c + 1;
    gaps between the ids are unused slots, and `num_classes` is at least the greatest id.
    `contiguous`: the c-th in the order of the ids; `num_classes` is their number."""
    resizer: Resizer = field(default_factory=FixedShapeResizer)
    """From an image of any size to the network input."""

    @property
    def network_size(self) -> tuple[int, int]:
        """Height and width in pixels of what its first layer takes."""
        return self.resizer.input_size

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images of a batch."""
        return (*self.resizer.input_size, self.image_kind.channels)

    @property
    def max_detections(self) -> int:
        """Most boxes that are found in one image: the K of `Detections`."""
        if self.nms is None:
            raise NotImplementedError
        return self.nms.max_total

    @property
    def nms(self) -> Nms | None:
        """The suppression that ends in detections; None: the model has no such setting."""
        return None

    def with_max_detections(self, most: int) -> Self:
        """Returns the model with another `max_detections`; see `nms`."""
        raise NotImplementedError

    @property
    def normalization(self) -> "PixelNormalization | None":
        """From 0..255 to the input range of the network; None: it is not described."""
        return None

    @property
    def image_kind(self) -> ImageKind:
        """Channels and bits of the images."""
        return RGB_8 if self.normalization is None else self.normalization.image_kind

    @property
    def anchor_stage(self) -> AnchorStage | None:
        """The anchors and their matcher; None for a model without anchors."""
        return None

    @property
    def normalizes_per_replica(self) -> bool:
        """Whether the loss is normalised per replica (`devices.replicas`)."""
        return False

    @property
    def parts(self) -> Mapping[str, Any]:
        """The configuration of each part by its name, the first word of its parameters' paths."""
        return {}

    @property
    def classifier_parts(self) -> tuple[str, ...]:
        """Parts that are in a classifier's network too, and can be initialised from its weights."""
        return ("backbone",)

    @property
    def head_parts(self) -> tuple[str, ...]:
        """Parts that the weights of a detector initialise on demand alone (`load_heads`)."""
        return ("head",)

    @property
    def class_logits(self) -> int:
        """Class logits of one box, including the background."""
        return self.num_classes + 1

    def describe(self) -> dict[str, str]:
        """Returns the names of the parts, for reports."""
        return {"architecture": self.kind}

    def convolutions(self) -> dict[str, ConvHyperparams]:
        """Returns the hyperparameters of all parts that have any, by their path in the model."""
        return {}


# As in most published configs: small weights, so that all scores are similar at the start.
_PREDICTORS = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=4e-5),
    initializer=RandomNormal(stddev=0.01),
    batch_norm=BatchNorm(decay=0.997, epsilon=0.001, center=True, scale=True),
)


class Head(RegisteredConfig):
    """From feature maps to box encodings and class logits.

    Called as `(config, channels, outputs, options)`, with the channels of the feature maps and
    `models.parts.Outputs`; returns a `models.parts.Part` that maps them to `Predictions`.
    """

    @property
    def conv(self) -> ConvHyperparams | None:
        """Hyperparameters of the convolutions, if they come from the experiment."""
        return None


@dataclass(frozen=True, kw_only=True)
class ConvolutionalHead(Head, kind="convolutional"):
    """One box and one class convolution for each feature map, nothing shared."""

    layers_before: Layers = 0
    """1x1 convolutions between the feature map and the two heads."""
    min_depth: OptionalChannels = 0
    """Floor of their channel count."""
    max_depth: OptionalChannels = 0
    """Ceiling of their channel count; 0 disables the layers, as the original does."""
    dropout: bool = True
    """Dropout before the class convolution in training; on by default, as in the original."""
    dropout_keep_probability: PositiveFraction = 0.8
    """Share of the activations that dropout keeps."""
    kernel_size: KernelSide = 1
    """Side of the two head kernels."""
    depthwise: bool = False
    """A depthwise convolution with normalisation, then a 1x1, instead of a full one (SSDLite)."""
    class_bias_init: Real = 0.0
    """Start of the class biases; -4.6 makes every score 0.01 at first."""
    conv: ConvHyperparams = _PREDICTORS
    """Hyperparameters; normalisation and activation concern the layers before the heads only."""


@dataclass(frozen=True, kw_only=True)
class WeightSharedHead(Head, kind="weight_shared"):
    """Towers and heads with kernels that all feature maps share (arXiv:1708.02002).

    Batch norm is not shared: each layer has one for every feature map. Group norm is. Maps with
    other channels than most are projected to that number first.
    """

    depth: Channels = 256
    """Channels of the towers."""
    layers_before: Layers = 4
    """Convolutions of a tower."""
    kernel_size: KernelSide = 3
    """Side of all kernels, unless the next field says otherwise."""
    predictor_kernel_size: OptionalKernelSide = 0
    """Side of the box and class kernels; 0: `kernel_size`."""
    share_tower: bool = False
    """One tower for boxes and classes instead of one for each."""
    depthwise: bool = False
    """Separable convolutions instead of full ones."""
    pointwise_defaults: bool = False
    """1x1 kernels of separable towers have the defaults of Keras, Glorot's uniform
    distribution and no penalty, as in the `_keras` extractors."""
    dropout: bool = False
    """Dropout before the class convolution in training."""
    dropout_keep_probability: PositiveFraction = 0.8
    """Share of the activations that dropout keeps."""
    class_bias_init: Real = 0.0
    """Start of the class biases; -4.6 makes every score 0.01 at first."""
    predictor_defaults: bool = False
    """All kernels of the separable box and class convolutions have them too."""
    predictor_initializer: Initializer | None = None
    """Distribution of the heads' fresh kernels, where the towers have another."""
    conv: ConvHyperparams = _PREDICTORS
    """Hyperparameters of the towers; regulariser and initialiser are the heads' too."""


@dataclass(frozen=True, kw_only=True)
class PerMapHead(WeightSharedHead, kind="per_map"):
    """Towers and heads of each feature map alone: Model Garden's `share_level_convs: false`."""


# Towers of the heads below, as in mmdet: one group norm for all maps, small kernels.
_GROUPED = ConvHyperparams(
    activation="relu",
    initializer=RandomNormal(stddev=0.01),
    group_norm=GroupNorm(groups=32, epsilon=1e-5),
)
# All scores are .01 at first.
_PRIOR = -4.59511985


@dataclass(frozen=True, kw_only=True)
class GflHead(WeightSharedHead, kind="gfl"):
    """A shared head with a learnt factor on the box codes of each feature map (arXiv:2006.04388).

    With the box coder `distribution` the codes are logits of distributions.
    """

    class_bias_init: Real = _PRIOR
    """Start of the class biases; the default makes every score 0.01 at first."""
    conv: ConvHyperparams = _GROUPED
    """Hyperparameters of the towers; regulariser and initialiser are the heads' too."""


@dataclass(frozen=True, kw_only=True)
class AtssHead(GflHead, kind="atss"):
    """A `gfl` head that also predicts the centerness of each location (arXiv:1912.02424).

    Scores are multiplied by it.
    """


@dataclass(frozen=True, kw_only=True)
class TaskAlignedHead(Head, kind="task_aligned"):
    """One tower for both tasks, of which each takes its own mixture of layers (arXiv:2108.07755).

    Edges of boxes are read where learnt offsets point. All feature maps share
    kernels and group norms. There is one anchor at a location, and the box coder `distances`.
    """

    depth: Annotated[int, Range(8, 65_536)] = 256
    """Channels of the tower; the layers that weigh tasks have an eighth of them."""
    layers_before: Annotated[int, Range(1, 64)] = 6
    """Convolutions of the tower."""
    depthwise: bool = False
    """Separable convolutions in the tower instead of full ones."""
    class_bias_init: Real = _PRIOR
    """Start of the class biases; the default makes every score 0.01 at first."""
    conv: ConvHyperparams = _GROUPED
    """Hyperparameters of the tower; regulariser and initialiser are the heads' too."""

    @property
    def pointwise_defaults(self) -> bool:
        """Whether separable convolutions have defaults of Keras; see `WeightSharedHead`."""
        return False


@dataclass(frozen=True, kw_only=True)
class PixelNormalization:
    """`(pixel - mean) / std`, one number for each channel, pixels in 0..255."""

    channels: Literal[1, 3, 4] = 3
    """Channels of the images. 1: brightness, which colours become too. 4: RGB and one more, such as
    infrared or depth. The first layer follows: weights for RGB are summed over the channels for 1;
    for 4, the fourth gets their mean, and all are multiplied by 3/4."""
    bits: Literal[8, 10, 12, 14, 16] = 8
    """Bits of the values in image files. White, `2^bits - 1`, becomes 255 in all of them, and what
    lies between whole numbers is kept. Files of 8 bits are taken too."""
    mean: Annotated[tuple[Real, ...], PerChannel] = (127.5, 127.5, 127.5)
    """Subtracted first. The default maps 0..255 to -1..1, the input range of MobileNets. Numbers of
    R, G and B serve images of other channels as well: their mean is the brightness's number, and
    the fourth channel's."""
    std: Annotated[tuple[Positive, ...], PerChannel] = (127.5, 127.5, 127.5)
    """Divides afterwards; the numbers are as for `mean`."""

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = per_channel(getattr(self, name), self.channels)
            object.__setattr__(self, name, values)

    @property
    def image_kind(self) -> ImageKind:
        """Channels and bits of the images."""
        return ImageKind(self.channels, self.bits)


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
    neck: Neck = field(default_factory=SsdExtraLayers)
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
    loss: DetectorLoss = field(default_factory=Loss)
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
        """Class logits of one box, including the background."""
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
