"""Backbone and neck of NanoDet-g (`RangiLyu/nanodet`, `nanodet-g.yml`), plain 3x3 convolutions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from stillbox.experiment.schema.layers import (
    L2,
    Backbone,
    BatchNorm,
    ConvHyperparams,
    VarianceScaling,
)
from stillbox.experiment.schema.necks import Pyramid
from stillbox.experiment.schema.ranges import Channels, Count, Items, Level, Range

# PyTorch's batch norm keeps nine tenths of a moving statistic.
_NANODET = ConvHyperparams(
    activation="leaky_relu",
    regularizer=L2(weight=1e-4),
    initializer=VarianceScaling(factor=2.0, mode="fan_in"),
    batch_norm=BatchNorm(decay=0.9, epsilon=1e-5, center=True, scale=True),
)


@dataclass(frozen=True, kw_only=True)
class Csp(Backbone, kind="csp"):
    """Cross stage partial network of 3x3 convolutions, without sums (arXiv:1911.11929).

    A block hands on its first convolution beside what the block makes of it. Its output has twice
    as many channels as its input, and feeds the next block.
    """

    layers: ClassVar[tuple[str, ...]] = ("stem", "block_1", "block_2", "block_3", "block_4")
    levels: ClassVar[Mapping[int, str]] = {2: "block_1", 3: "block_2", 4: "block_3", 5: "block_4"}
    min_side: ClassVar[int] = 33

    width: Annotated[int, Range(2, 4096)] = 32
    """Channels of the first convolution and of the input of block 1; even."""
    pairs: Annotated[
        tuple[Count, ...], Items(lengths=(4,), fix="give four, such as [1, 2, 2, 3]")
    ] = (1, 2, 2, 3)
    """Pairs of convolutions in each block."""
    last_layer: str = ""
    """Blocks up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = _NANODET
    """Hyperparameters of all convolutions."""


@dataclass(frozen=True, kw_only=True)
class Pan(Pyramid, kind="pan"):
    """Path aggregation network: sums from coarse to fine and back (arXiv:1803.01534).

    Maps are doubled and halved by bilinear interpolation. No convolution follows a sum, and no
    level is coarser than the backbone.
    """

    max_level: Level = 5
    """Coarsest level."""
    depth: Channels = 128
    """Channels of every feature map."""
    conv: ConvHyperparams = _NANODET
    """Hyperparameters of the 1x1 convolution of each tap, which is not activated."""
