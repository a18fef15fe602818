"""How a convolution is regularised, initialised, normalised and activated; the base of backbones.

The counterpart of `Hyperparams` in a `pipeline.config`
(`object_detection/protos/hyperparams.proto`). A class with a `kind` is one member of a choice:
`{kind: l2, weight: 4.0e-05}` in YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from stillbox.experiment.schema.ranges import (
    Count,
    Fraction,
    KernelSide,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveFraction,
    Real,
)
from stillbox.experiment.variants import RegisteredConfig

Activation = Literal["none", "relu", "relu6", "leaky_relu", "swish", "hard_swish"]
"""`leaky_relu` multiplies numbers below 0 by .1."""


class Regularizer(RegisteredConfig):
    """Penalty on the kernels of a convolution.

    Called as `(config, array)`; returns a float32 scalar.
    """


@dataclass(frozen=True, kw_only=True)
class L2(Regularizer, kind="l2"):
    """Adds `weight / 2 * sum(kernel ** 2)` for every kernel, depthwise ones included."""

    weight: NonNegative = 1.0
    """The factor before the halved sum of squares."""


@dataclass(frozen=True, kw_only=True)
class L1(Regularizer, kind="l1"):
    """Adds `weight * sum(|kernel|)` for every kernel, depthwise ones included."""

    weight: NonNegative = 1.0
    """The factor before the sum of absolute values."""


class Initializer(RegisteredConfig):
    """Distribution of fresh kernels.

    Called as `(config, shape, rng)`; returns an array of that shape.
    """


@dataclass(frozen=True, kw_only=True)
class TruncatedNormal(Initializer, kind="truncated_normal"):
    """A normal distribution cut at two standard deviations."""

    mean: Real = 0.0
    """Mean of the distribution before the cut."""
    stddev: NonNegative = 1.0
    """Standard deviation before the cut."""


@dataclass(frozen=True, kw_only=True)
class RandomNormal(Initializer, kind="random_normal"):
    """A normal distribution."""

    mean: Real = 0.0
    """Mean of the distribution."""
    stddev: NonNegative = 1.0
    """Standard deviation of the distribution."""


@dataclass(frozen=True, kw_only=True)
class VarianceScaling(Initializer, kind="variance_scaling"):
    """Variance `factor / fan`. Uniform with factor 1 and mode fan_avg is Glorot's."""

    factor: NonNegative = 2.0
    """Numerator of the variance."""
    uniform: bool = False
    """Draw uniformly instead of from a truncated normal."""
    mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in"
    """Which fan divides."""
    exact_cut: bool = False
    """Correct the variance of the truncated distribution exactly, as
    `tf.variance_scaling_initializer` does, instead of by slim's rounded factor."""
    untruncated: bool = False
    """Draw from the whole normal distribution."""


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """Batch normalisation by the biased variance of a batch."""

    decay: Fraction = 0.999
    """Share of the moving statistic that is kept at each step."""
    epsilon: Positive = 0.001
    """Added to the variance before the square root."""
    center: bool = True
    """Learn an offset (beta)."""
    scale: bool = False
    """Learn a factor (gamma)."""
    train: bool = True
    """Use the batch's own statistics in training; false uses the moving ones there too."""
    statistics: Literal["global", "per_replica", "groups"] = "global"
    """Images that share statistics: the whole batch over all devices; the images of one replica
    (`devices.replicas`), as in the originals without synchronisation; or each `group_size`
    successive images. Moving statistics are then the mean over all groups; the originals keep the
    statistics of one replica, which have the same expectation and more noise."""
    group_size: NonNegativeInt = 0
    """Images of a group where `statistics` is `groups`; it has to divide the batch."""
    moving_variance: Literal["unbiased", "biased"] = "unbiased"
    """Variance that the moving statistics keep: the unbiased one as in fused kernels, or the biased
    one as in Keras's synchronised batch norm."""


@dataclass(frozen=True, kw_only=True)
class GroupNorm:
    """Group normalisation: each image by its own statistics (arXiv:1803.08494).

    There are no moving statistics, so that a batch of one image trains as well as a large one.
    """

    groups: Count = 32
    """Groups of successive channels that share a mean and a variance; they divide the channels."""
    epsilon: Positive = 1e-5
    """Added to the variance before the square root."""


@dataclass(frozen=True, kw_only=True)
class ConvHyperparams:
    """Hyperparameters that a group of convolutions shares."""

    activation: Activation = "relu"
    """Applied after normalisation."""
    regularizer: Regularizer | None = None
    """Penalty on the kernels, and on what the two fields below name."""
    regularize_bias: bool = False
    """Penalise the biases of convolutions too."""
    regularize_norm: bool = False
    """Penalise factor and offset of the normalisation too."""
    initializer: Initializer = field(default_factory=TruncatedNormal)
    """Distribution of fresh kernels."""
    batch_norm: BatchNorm | None = None
    """None: no batch normalisation; without any normalisation the convolution has a bias."""
    group_norm: GroupNorm | None = None
    """Group normalisation, instead of batch normalisation."""
    force_bias: bool = False
    """Add a bias in front of the normalisation too."""
    regularize_depthwise: bool = True
    """Penalise depthwise kernels like all others."""

    @property
    def normalizes(self) -> bool:
        """Whether there is a normalisation."""
        return self.batch_norm is not None or self.group_norm is not None

    def without_norm(self, activation: Activation = "none") -> "ConvHyperparams":
        """Returns them without normalisation, and with another activation."""
        return replace(self, batch_norm=None, group_norm=None, activation=activation)


@dataclass(frozen=True, kw_only=True)
class DropBlock:
    """Leaves squares of a feature map out in training, channel by channel (arXiv:1810.12890)."""

    keep_probability: PositiveFraction = 0.9
    """Share of the values that stays; they are divided by what the squares really left."""
    block_size: KernelSide = 7
    """Side of a square in pixels of the map."""


class Backbone(RegisteredConfig):
    """From the network input to feature maps of falling resolution.

    Members declare `layers`, `levels` and, if an image may be too small, `min_side`. Called as
    `(config, taps, options)`; returns a `models.parts.Part` that maps images `[B, H, W, C]` to the
    tapped maps and has their `channels`.
    """

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that a neck can tap, in the order of their computation."""
        raise NotImplementedError

    @property
    def levels(self) -> Mapping[int, str]:
        """The last layer of each level; level l has a stride of 2^l pixels."""
        raise NotImplementedError

    @property
    def min_side(self) -> int:
        """Least side of the network input, in pixels."""
        return 1

    @property
    def last_layer(self) -> str:
        """Layers up to this one exist even if nothing taps them; empty: up to the last tap."""
        return ""

    @property
    def conv(self) -> ConvHyperparams | None:
        """Hyperparameters of the convolutions, if they come from the experiment."""
        return None
