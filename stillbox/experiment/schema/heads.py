"""From feature maps to box encodings and class logits."""

from dataclasses import dataclass

from stillbox.experiment.schema.layers import *
from stillbox.experiment.schema.ranges import *
from stillbox.experiment.variants import Variant

# Those of most published configs: small weights, so that all scores are similar at the start.
_PREDICTORS = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=4e-5),
    initializer=RandomNormal(stddev=0.01),
    batch_norm=BatchNorm(decay=0.997, epsilon=0.001, center=True, scale=True),
)


class Head(Variant):
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
    """Towers and heads whose kernels all feature maps share (arXiv:1708.02002).

    Batch norm is not shared: each layer has one for every feature map. Maps with other channels
    than most are projected to that number first.
    """

    depth: Channels = 256
    """Channels of the towers."""
    layers_before: Layers = 4
    """Convolutions of a tower."""
    kernel_size: KernelSide = 3
    """Side of all kernels."""
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
    """Distribution of the heads' fresh kernels, where it is another than that of the towers."""
    conv: ConvHyperparams = _PREDICTORS
    """Hyperparameters of the towers; regulariser and initialiser are the heads' too."""
