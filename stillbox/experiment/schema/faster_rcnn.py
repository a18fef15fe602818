"""Two-stage detectors: Faster R-CNN (arXiv:1506.01497), its crops and its box heads.

The original's `object_detection/protos/faster_rcnn.proto`,
`object_detection/meta_architectures/faster_rcnn_meta_arch.py`,
`object_detection/utils/spatial_transform_ops.py`, and the second halves of
`object_detection/models/faster_rcnn_*_feature_extractor.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from stillbox.experiment.schema.anchors import Anchors, GridAnchors
from stillbox.experiment.schema.backbones import InceptionResNetV2, InceptionV2, ResNetV1
from stillbox.experiment.schema.box_coders import BoxCoder, FasterRcnnBoxCoder
from stillbox.experiment.schema.detector_losses import HardExampleMiner
from stillbox.experiment.schema.layers import (
    Activation,
    Backbone,
    BatchNorm,
    ConvHyperparams,
    TruncatedNormal,
    VarianceScaling,
)
from stillbox.experiment.schema.losses import (
    ClassificationLoss,
    LocalizationLoss,
    SmoothL1Loss,
    SoftmaxLoss,
)
from stillbox.experiment.schema.matchers import (
    ArgmaxMatcher,
    IouSimilarity,
    Matcher,
    Similarity,
)
from stillbox.experiment.schema.model import Model, PixelNormalization
from stillbox.experiment.schema.necks import Identity, Neck
from stillbox.experiment.schema.postprocessing import Nms, Postprocessing
from stillbox.experiment.schema.ranges import (
    Boxes,
    Channels,
    Count,
    Fraction,
    KernelSide,
    Multiplier,
    NonNegative,
    PositiveFraction,
    Range,
    Real,
)
from stillbox.experiment.variants import RegisteredConfig

_FULLY_CONNECTED_CONV = ConvHyperparams(
    activation="relu",
    initializer=VarianceScaling(factor=1.0, uniform=True, mode="fan_avg"),
    batch_norm=BatchNorm(decay=0.99, epsilon=0.001, center=True, scale=True),
)


class BoxHead(RegisteredConfig):
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
    """The stride of its first unit: 1 in the original's first generation, 2 in its second."""
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
class InceptionResNetV2BlockHead(BoxHead, kind="inception_resnet_v2_block"):
    """The end of Inception ResNet v2, `mixed_7a` to `conv_7b`, then the mean over the crop."""

    padding: Literal["valid", "same"] = "valid"
    """The padding of strided layers: none in the original's first generation, TensorFlow's in its
    second."""
    depth_multiplier: Multiplier = 1.0
    """Factor on the channel counts of all convolutions but those that end a block."""
    min_depth: Channels = 16
    """None of these layers has fewer channels than this."""
    conv: ConvHyperparams = InceptionResNetV2().conv
    """Hyperparameters of the blocks. The convolution that ends a block has a bias and no norm."""


@dataclass(frozen=True, kw_only=True)
class FullyConnectedHead(BoxHead, kind="fully_connected"):
    """Two fully connected layers on the flattened crop; the first is normalised."""

    ends_classifier: ClassVar[bool] = False

    widths: tuple[Channels, ...] = (1024, 1024)
    """Outputs of each layer."""
    conv: ConvHyperparams = _FULLY_CONNECTED_CONV
    """Hyperparameters of the layers."""


class RoiCrop(RegisteredConfig):
    """From feature maps and boxes to one crop for each box.

    Called as `(config, maps, boxes, windows, input_size)`: feature maps `[B, H, W, C]` from fine to
    coarse; boxes `[B, P, 4]`, normalised to the windows; windows `[B, 2]`, height and width in
    pixels of the part of each network input that counts, from its upper left corner; height and
    width of the network input. Returns `[B, P, S, S, C]`, S being `output_size`. A box of a pyramid
    is cropped from the level of its size (arXiv:1612.03144, equation 1).
    """

    @property
    def output_size(self) -> int:
        """Height and width of a crop."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class CropAndResize(RoiCrop, kind="crop_and_resize"):
    """Bilinear samples at evenly spaced points from edge to edge of a box, then max pooling."""

    size: KernelSide = 14
    """Points in a row and in a column of a box (`initial_crop_size`)."""
    pool_size: KernelSide = 2
    """Side of the window of max pooling, without padding (`maxpool_kernel_size`)."""
    pool_stride: KernelSide = 2
    """Distance of the windows (`maxpool_stride`)."""
    outside: Literal["zero", "fade"] = "zero"
    """Value of a point outside of the map: 0, as in `tf.image.crop_and_resize`, or from the values
    of its four neighbours that are inside, as in the original's form by matrix products."""

    @property
    def output_size(self) -> int:
        """Height and width of a crop after pooling."""
        return (self.size - self.pool_size) // self.pool_stride + 1


@dataclass(frozen=True, kw_only=True)
class RoiAlign(RoiCrop, kind="roi_align"):
    """The mean of bilinear samples in each cell of a box (arXiv:1703.06870)."""

    size: KernelSide = 7
    """Rows and columns of cells."""
    samples: Count = 2
    """Points in a row and in a column of a cell."""

    @property
    def output_size(self) -> int:
        """Height and width of a crop."""
        return self.size


_PIXELS = PixelNormalization(mean=(123.68, 116.779, 103.939), std=(1.0, 1.0, 1.0))
_STRIDE_16 = Identity(min_level=4, max_level=4)
_ANCHORS = GridAnchors(scales=(0.25, 0.5, 1.0, 2.0))
# In between, anchors are ignored; every ground-truth box gets its best anchor.
_ANCHOR_MATCHER = ArgmaxMatcher(
    matched_threshold=0.7, unmatched_threshold=0.3, force_match_for_each_row=True
)
_RPN = ConvHyperparams(activation="relu6", initializer=TruncatedNormal(stddev=0.01))
_FULLY_CONNECTED = ConvHyperparams(
    activation="none", initializer=VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")
)
_SOFTMAX = Postprocessing(score_converter="softmax", nms=Nms(max_per_class=100, max_total=300))


@dataclass(frozen=True, kw_only=True)
class RPN:
    """The first stage: a region proposal network, its loss, and the choice of its proposals."""

    depth: Channels = 512
    """Channels of its convolution."""
    kernel_size: KernelSide = 3
    """Side of its kernel."""
    dilation: KernelSide = 1
    """Distance of the kernel's taps in pixels of the map (`first_stage_atrous_rate`)."""
    conv: ConvHyperparams = _RPN
    """Hyperparameters; regulariser and initialiser hold for the two 1x1 heads too."""
    anchors: Anchors = _ANCHORS
    """The boxes that proposals are relative to."""
    clip_anchors: bool = False
    """Clip anchors to the window in training, as inference always does. False: training leaves out
    every anchor that is not wholly inside."""
    box_coder: BoxCoder = field(default_factory=FasterRcnnBoxCoder)
    """The form in which a proposal is written relative to its anchor."""
    matcher: Matcher = _ANCHOR_MATCHER
    """Assigns ground-truth boxes to anchors."""
    similarity: Similarity = field(default_factory=IouSimilarity)
    """What the matcher compares."""
    sample_size: Boxes = 256
    """Anchors of an image that the loss is computed from; they are drawn at random."""
    positive_fraction: Fraction = 0.5
    """Largest share of matched anchors among them."""
    localization_weight: NonNegative = 1.0
    """Factor on the localisation loss."""
    objectness_weight: NonNegative = 1.0
    """Factor on the objectness loss."""
    score_threshold: Real = 0.0
    """Only boxes with an objectness strictly above this become proposals."""
    iou_threshold: Fraction = 0.7
    """A box that overlaps a better one by more than this is no proposal."""
    drop_at_threshold: bool = False
    """Drop a box that overlaps by exactly the threshold too, as the original's static form."""
    keep_outside: bool = False
    """Keep proposals that clipping leaves without area, as the original's combined NMS."""
    max_proposals: Boxes = 300
    """Most proposals of an image."""

    @property
    def nms(self) -> Nms:
        """The suppression that ends in proposals."""
        return Nms(
            score_threshold=self.score_threshold,
            iou_threshold=self.iou_threshold,
            drop_at_threshold=self.drop_at_threshold,
            max_per_class=self.max_proposals,
            max_total=self.max_proposals,
        )


@dataclass(frozen=True, kw_only=True)
class RoIHead:
    """The second stage: a class and a refined box for every proposal."""

    crop: RoiCrop = field(default_factory=CropAndResize)
    """From the feature maps to one crop for each proposal."""
    head: BoxHead = field(default_factory=ResNetBlockHead)
    """From a crop to the features that boxes and classes are predicted from."""
    share_boxes: bool = False
    """One box for each proposal instead of one for each class."""
    dropout: bool = False
    """Dropout before both predictions in training."""
    dropout_keep_probability: PositiveFraction = 0.5
    """Share of the features that dropout keeps."""
    predictor: ConvHyperparams = _FULLY_CONNECTED
    """Hyperparameters of the two fully connected layers that predict."""
    box_coder: BoxCoder = field(default_factory=FasterRcnnBoxCoder)
    """The form in which a box is written relative to its proposal."""
    matcher: Matcher = field(default_factory=ArgmaxMatcher)
    """Assigns ground-truth boxes to proposals."""
    similarity: Similarity = field(default_factory=IouSimilarity)
    """What the matcher compares."""
    sample_size: Boxes = 64
    """Proposals of an image that training uses; they are drawn at random. With a hard example
    miner all are used."""
    positive_fraction: Fraction = 0.25
    """Largest share of matched proposals among them."""
    classification: ClassificationLoss = field(default_factory=SoftmaxLoss)
    """Loss of the class logits."""
    localization: LocalizationLoss = field(default_factory=SmoothL1Loss)
    """Loss of the boxes of matched proposals."""
    classification_weight: NonNegative = 1.0
    """Factor on the classification loss."""
    localization_weight: NonNegative = 1.0
    """Factor on the localisation loss."""
    hard_example_miner: HardExampleMiner | None = None
    """None: every sampled proposal counts."""
    postprocessing: Postprocessing = _SOFTMAX
    """From raw predictions to detections."""


@dataclass(frozen=True, kw_only=True)
class FasterRcnn(Model, kind="faster_rcnn"):
    """Anchor-based detector of two stages: proposals, then a class and a box for each of them."""

    pixels: PixelNormalization = _PIXELS
    """From 0..255 to the input range of the backbone."""
    mask_padding: bool = False
    """Compute for every image what an input of its true size would give: padding is zero in front
    of every layer, and anchors and proposals end at the image. False: padding is part of the
    network input, as in the original's `pad_to_max_dimension`."""
    backbone: Backbone = field(default_factory=ResNetV1)
    """From the network input to taps of falling resolution."""
    neck: Neck = _STRIDE_16
    """From taps to the feature maps that proposals and crops are taken from."""
    freeze_batch_norm: bool = True
    """Normalise with the moving statistics in training and leave them unchanged."""
    proposals: RPN = field(default_factory=RPN)
    """The first stage."""
    boxes: RoIHead | None = field(default_factory=RoIHead)
    """The second stage. None: proposals are the detections, all of class 0."""

    @property
    def nms(self) -> Nms:
        """The suppression that ends in detections."""
        return self.proposals.nms if self.boxes is None else self.boxes.postprocessing.nms

    def with_max_detections(self, most: int) -> Self:
        """Returns the model with another `max_detections`."""
        if self.boxes is None:
            return replace(self, proposals=replace(self.proposals, max_proposals=most))
        processing = replace(self.boxes.postprocessing, nms=replace(self.nms, max_total=most))
        return replace(self, boxes=replace(self.boxes, postprocessing=processing))

    @property
    def normalization(self) -> PixelNormalization:
        """From 0..255 to the input range of the backbone."""
        return self.pixels

    @property
    def anchor_stage(self) -> RPN:
        """The first stage."""
        return self.proposals

    @property
    def training_crops(self) -> int:
        """Proposals of an image that the second stage is trained with."""
        if self.boxes is None:
            return 0
        mined = self.boxes.hard_example_miner is not None
        return self.proposals.max_proposals if mined else self.boxes.sample_size

    @property
    def parts(self) -> Mapping[str, Any]:
        """The configuration of each part by its name, the first word of its parameters' paths."""
        parts: dict[str, Any] = {
            "backbone": self.backbone,
            "neck": self.neck,
            "proposals": self.proposals,
        }
        if self.boxes is not None:
            parts |= {"box_head": self.boxes.head, "box_predictor": self.boxes}
        return parts

    @property
    def classifier_parts(self) -> tuple[str, ...]:
        """Parts that are in a classifier's network too, and can be initialised from its weights."""
        if self.boxes is None or not self.boxes.head.ends_classifier:
            return ("backbone",)
        return ("backbone", "box_head")

    @property
    def head_parts(self) -> tuple[str, ...]:
        """Parts that the weights of a detector initialise on demand alone (`load_heads`)."""
        return ("proposals", "box_predictor")

    def describe(self) -> dict[str, str]:
        """Returns the names of the parts, for reports."""
        parts = {"architecture": self.kind, "backbone": self.backbone.kind, "neck": self.neck.kind}
        if self.boxes is not None:
            parts |= {"crop": self.boxes.crop.kind, "box head": self.boxes.head.kind}
        return parts

    def convolutions(self) -> dict[str, ConvHyperparams]:
        """Returns the hyperparameters of all parts that have any, by their path in the model."""
        convs = {
            "backbone.conv": self.backbone.conv,
            "neck.conv": self.neck.conv,
            "proposals.conv": self.proposals.conv,
        }
        if self.boxes is not None:
            head, predictor = self.boxes.head.conv, self.boxes.predictor
            convs |= {"boxes.head.conv": head, "boxes.predictor": predictor}
        return {path: conv for path, conv in convs.items() if conv is not None}
