"""MnasFPN (arXiv:1912.01106).

The original's `object_detection/models/ssd_mobilenet_v2_mnasfpn_feature_extractor.py`.
"""

from dataclasses import dataclass

from stillbox.experiment.schema.layers import *
from stillbox.experiment.schema.necks import *
from stillbox.experiment.schema.necks import Pyramid
from stillbox.experiment.schema.ranges import *

# The original's, which no config changes.
_MNASFPN = ConvHyperparams(
    activation="relu6",
    regularizer=L2(weight=1e-4),
    initializer=VarianceScaling(factor=2.0, mode="fan_in", exact_cut=True),
    batch_norm=BatchNorm(decay=0.99, epsilon=0.01, center=True, scale=True),
)
# He's rule for a depthwise kernel of 3x3.
_SEPARABLE = TruncatedNormal(stddev=0.536)


@dataclass(frozen=True, kw_only=True)
class MnasFpn(Pyramid, kind="mnasfpn"):
    """MnasFPN: a pyramid of inverted residuals, found by search for phones (arXiv:1912.01106).

    Levels that the backbone lacks are max-pooled from the next finer one and projected. A block of
    a cell widens two maps, adds them at its level, filters and narrows the sum. A finer map is
    max-pooled before it is widened, a coarser one repeated after that.
    """

    max_level: Level = 6
    """Coarsest level. The cell has four levels, so that it is `min_level` + 3."""
    depth: Channels = 48
    """Channels of every feature map, before the depth multiplier."""
    num_repeats: Repeats = 4
    """Cells in sequence."""
    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    min_depth: Channels = 16
    """No layer has fewer channels than this."""
    explicit_padding: bool = False
    """Pad max pooling by zeros, which may be the maximum, alike on all sides."""
    separable_initializer: Initializer = _SEPARABLE
    """Distribution of fresh kernels of separable convolutions, the 1x1 too."""
    conv: ConvHyperparams = _MNASFPN
    """Hyperparameters of all convolutions; the activation follows the sum of a block. The
    projections of coarse levels have no penalty."""
