"""The detector: from pixels to boxes, one small value for each of its parts."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from stillbox.experiment.schema.layers import ConvHyperparams
from stillbox.experiment.schema.losses import Loss
from stillbox.experiment.schema.postprocessing import Postprocessing

ResizeMethod = Literal["bilinear", "nearest", "bicubic", "area", "bilinear_antialias"]


@dataclass(frozen=True, kw_only=True)
class FixedShapeResizer:
    """Stretches every image to one shape; the aspect ratio is not kept."""

    kind: ClassVar[str] = "fixed_shape"
    height: int = 300
    """Rows of the network input, in pixels."""
    width: int = 300
    """Columns of the network input, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation. `bilinear` is TF1's old form without half-pixel centres (fact sheet 3.1),
    `bilinear_antialias` the triangle filter that Pillow, TF2 and JAX shrink images with."""


@dataclass(frozen=True, kw_only=True)
class KeepAspectRatioResizer:
    """Scales the short side to `min_dimension` unless the long one would pass `max_dimension`.

    The result is padded at the bottom and right to `max_dimension` squared, always: an unpadded
    image has no fixed shape. The padding is masked and changes no result.
    """

    kind: ClassVar[str] = "keep_aspect_ratio"
    min_dimension: int = 600
    """Length that the short side aims for, in pixels."""
    max_dimension: int = 1024
    """Length that the long side may not pass, and the side of the padded canvas, in pixels."""
    method: ResizeMethod = "bilinear"
    """Interpolation, as for the fixed shape."""
    pad_value: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Colour of the padding, one number for each channel, in 0..255."""


Resizer = FixedShapeResizer | KeepAspectRatioResizer


@dataclass(frozen=True, kw_only=True)
class PixelNormalization:
    """`(pixel - mean) / std`, one number for each channel, pixels in 0..255."""

    mean: tuple[float, ...] = (127.5, 127.5, 127.5)
    """Subtracted first. The default maps 0..255 to -1..1, as the MobileNet family wants."""
    std: tuple[float, ...] = (127.5, 127.5, 127.5)
    """Divides afterwards."""


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


@dataclass(frozen=True, kw_only=True)
class ConvolutionalHead:
    """One box and one class convolution for each feature map, nothing shared (fact sheet 3.3)."""

    kind: ClassVar[str] = "convolutional"
    layers_before: int = 0
    """1x1 convolutions between the feature map and the two heads."""
    min_depth: int = 0
    """Floor of their channel count."""
    max_depth: int = 0
    """Ceiling of their channel count; 0 disables the layers, as the original does."""
    dropout: bool = True
    """Dropout before the class convolution in training; on by default, as in the original."""
    dropout_keep_probability: float = 0.8
    """Share of the activations that dropout keeps."""
    kernel_size: int = 1
    """Side of the two head kernels."""
    class_bias_init: float = 0.0
    """Start of the class biases; -4.6 makes every score 0.01 at first."""
    conv: ConvHyperparams = field(default_factory=ConvHyperparams)
    """Hyperparameters; normalisation and activation concern the layers before the heads only."""


Head = ConvolutionalHead


@dataclass(frozen=True, kw_only=True)
class SsdAnchors:
    """SSD's anchors: one scale a feature map, several aspect ratios (fact sheet 3.4)."""

    kind: ClassVar[str] = "ssd"
    num_layers: int = 6
    """Feature maps that carry anchors."""
    min_scale: float = 0.2
    """Scale of the finest map, as a share of the image's shorter side."""
    max_scale: float = 0.95
    """Scale of the coarsest map."""
    scales: tuple[float, ...] = ()
    """Explicit scales, one a map; when given, `min_scale` and `max_scale` are not used."""
    aspect_ratios: tuple[float, ...] = (1.0, 2.0, 3.0, 0.5, 1.0 / 3)
    """Width over height, in the order of the head's channels."""
    interpolated_scale_aspect_ratio: float = 1.0
    """Aspect ratio of one further anchor between two scales; 0 leaves it out."""
    reduce_boxes_in_lowest_layer: bool = True
    """Three anchors instead of six on the finest map."""
    base_anchor_height: float = 1.0
    """Height that scale 1 stands for."""
    base_anchor_width: float = 1.0
    """Width that scale 1 stands for."""
    height_strides: tuple[int, ...] = ()
    """Vertical distance of the centres in pixels, one a map; empty: image over map."""
    width_strides: tuple[int, ...] = ()
    """Horizontal distance of the centres in pixels."""
    height_offsets: tuple[int, ...] = ()
    """First centre from the top in pixels, one a map; empty: half a stride."""
    width_offsets: tuple[int, ...] = ()
    """First centre from the left in pixels."""


Anchors = SsdAnchors


@dataclass(frozen=True, kw_only=True)
class FasterRcnnBoxCoder:
    """Centre offsets over anchor size and logarithms of size ratios, each times a scale."""

    kind: ClassVar[str] = "faster_rcnn"
    y_scale: float = 10.0
    """Factor on the vertical offset."""
    x_scale: float = 10.0
    """Factor on the horizontal offset."""
    height_scale: float = 5.0
    """Factor on the logarithm of the height ratio."""
    width_scale: float = 5.0
    """Factor on the logarithm of the width ratio."""


BoxCoder = FasterRcnnBoxCoder


@dataclass(frozen=True, kw_only=True)
class ArgmaxMatcher:
    """Every anchor takes its most similar ground truth box, or none (fact sheet 3.5)."""

    kind: ClassVar[str] = "argmax"
    matched_threshold: float = 0.5
    """At or above this similarity an anchor is matched."""
    unmatched_threshold: float = 0.5
    """Below this similarity an anchor is background; in between it is ignored."""
    ignore_thresholds: bool = False
    """Match every anchor, whatever its similarity."""
    negatives_lower_than_unmatched: bool = True
    """False swaps background and ignored."""
    force_match_for_each_row: bool = False
    """Give every ground truth box its best anchor, even below the threshold."""


Matcher = ArgmaxMatcher


@dataclass(frozen=True, kw_only=True)
class Model:
    """An anchor-based detector: resizer, backbone, neck, head, anchors, targets, losses, NMS."""

    num_classes: int = 90
    """Foreground classes; class index c stands for label map id c + 1."""
    resizer: Resizer = field(default_factory=FixedShapeResizer)
    """From an image of any size to the network input."""
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
    similarity: Literal["iou"] = "iou"
    """What the matcher compares."""
    loss: Loss = field(default_factory=Loss)
    """What training minimises."""
    postprocessing: Postprocessing = field(default_factory=Postprocessing)
    """From raw predictions to detections."""
