"""EfficientNet (arXiv:1905.11946), the backbone of EfficientDet (arXiv:1911.09070)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from stillbox.experiment.schema.backbones import *
from stillbox.experiment.schema.layers import *
from stillbox.experiment.schema.ranges import *

_EFFICIENTNET = ConvHyperparams(
    activation="swish",
    regularizer=L2(weight=1e-5),
    regularize_bias=True,
    regularize_depthwise=False,
    initializer=VarianceScaling(factor=2.0, mode="fan_out", exact_cut=True),
    batch_norm=BatchNorm(decay=0.99, epsilon=0.001, center=True, scale=True),
)

# Blocks of each stack before the factor, and the one that a detector taps by its level. The
# original has the indices of the smallest network in all sizes.
_BLOCKS = (1, 2, 2, 3, 3, 4, 1)
_TAPS = {1: (0, 0), 2: (1, 1), 3: (2, 1), 4: (4, 2), 5: (6, 0)}


@dataclass(frozen=True, kw_only=True)
class EfficientNet(Backbone, kind="efficientnet"):
    """EfficientNet without its last convolution; a layer `stack_{s}_block_{b}` is a block's sum.

    Its neck in EfficientDet is `bifpn`.
    """

    min_side: ClassVar[int] = 129

    width_coefficient: Multiplier = 1.0
    """Factor on every channel count; the products are rounded to multiples of 8."""
    depth_coefficient: Annotated[float, Range(0.01, 5)] = 1.0
    """Factor on the number of blocks of every stack, rounded up."""
    se_ratio: Fraction = 0.25
    """Share of a block's input channels to which its gate squeezes; 0: there is no gate."""
    drop_connect_rate: FractionBelowOne = 0.2
    """Probability with which the last block is left out for an image in training, its shortcut
    apart; block i of n has i/n of it (arXiv:1603.09382)."""
    last_layer: str = ""
    """Blocks up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = _EFFICIENTNET
    """Hyperparameters of all convolutions; those of the gates have biases and no norm."""

    def count_blocks(self) -> tuple[int, ...]:
        """Returns the number of blocks of each stack."""
        return tuple(ceil(blocks * self.depth_coefficient) for blocks in _BLOCKS)

    @property
    def layers(self) -> tuple[str, ...]:
        """The first convolution, then all blocks."""
        counts = enumerate(self.count_blocks())
        return ("stem", *(f"stack_{s}_block_{b}" for s, count in counts for b in range(count)))

    @property
    def levels(self) -> Mapping[int, str]:
        """Blocks by level: in larger networks they lie inside of their stacks, as in the original
        (`ssd_efficientnet_bifpn_feature_extractor.py`)."""
        counts = self.count_blocks()
        return {
            level: f"stack_{stack}_block_{min(block, counts[stack] - 1)}"
            for level, (stack, block) in _TAPS.items()
        }


EFFICIENTNET_SIZES: Mapping[str, EfficientNet] = {
    "b0": EfficientNet(),
    "b1": EfficientNet(width_coefficient=1.0, depth_coefficient=1.1),
    "b2": EfficientNet(width_coefficient=1.1, depth_coefficient=1.2),
    "b3": EfficientNet(width_coefficient=1.2, depth_coefficient=1.4),
    "b4": EfficientNet(width_coefficient=1.4, depth_coefficient=1.8),
    "b5": EfficientNet(width_coefficient=1.6, depth_coefficient=2.2),
    "b6": EfficientNet(width_coefficient=1.8, depth_coefficient=2.6),
    "b7": EfficientNet(width_coefficient=2.0, depth_coefficient=3.1),
}
"""The members of the family by the names that their authors give them."""
