"""Inception v3, the backbone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stillbox.experiment.schema.backbones import *
from stillbox.experiment.schema.layers import *
from stillbox.experiment.schema.ranges import *

_BLOCKS = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")


@dataclass(frozen=True, kw_only=True)
class InceptionV3(Backbone, kind="inception_v3"):
    """Inception v3: factorised convolutions (arXiv:1512.00567).

    Its strided layers are not padded, so that maps are smaller than the image by more than their
    stride, and no pyramid fits.
    """

    layers: ClassVar[tuple[str, ...]] = (
        *("conv_1a", "conv_2a", "conv_2b", "pool_3a", "conv_3b", "conv_4a", "pool_5a"),
        *(f"mixed_{name}" for name in _BLOCKS),
    )
    levels: ClassVar[Mapping[int, str]] = {5: "mixed_7c"}
    # 75 pixels are 37, 35, 17, 15, 7, 3 and 1.
    min_side: ClassVar[int] = 75

    depth_multiplier: Multiplier = 1.0
    """Factor on every channel count."""
    min_depth: Channels = 16
    """No layer has fewer channels than this."""
    last_layer: str = ""
    """Layers up to this one exist even where nothing reads them; empty: up to the last tap."""
    conv: ConvHyperparams = InceptionV2().conv
    """Hyperparameters of the base network."""
