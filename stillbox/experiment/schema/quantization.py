"""Quantisation-aware training."""

from dataclasses import dataclass
from typing import Annotated

from stillbox.experiment.schema.ranges import *

Bits = Annotated[int, Range(2, 16)]


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Rounds weights and activations in training as integers do (arXiv:1712.05877, section 3).

    Batch norms are folded into the kernels before they are rounded. The counterpart of
    `graph_rewriter` in a `pipeline.config`, which rewrites the graph by `tf.contrib.quantize`.
    """

    delay: NonNegativeInt = 500_000
    """Steps before rounding begins. Ranges are measured from the first step on."""
    weight_bits: Bits = 8
    """Bits of a kernel's values, which have one range for the whole kernel."""
    activation_bits: Bits = 8
    """Bits of the results of convolutions and of sums."""
    symmetric: bool = False
    """Ranges reach equally far on both sides of 0."""
