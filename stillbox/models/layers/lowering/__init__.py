"""The arithmetic of the layers, with a lowering of its own for the CPU.

XLA's CPU backend has slow spots that other backends do not have: grouped convolutions, reductions
over everything but the channels, gradients of strided convolutions. The functions here choose per
platform while the program is lowered (`jax.lax.platform_dependent`), so that a program compiled on
a CPU machine for a TPU gets the TPU's form. The choice is made inside custom derivatives: had
autodiff to look through it, the residuals of both forms would be kept.
"""

from stillbox.models.layers.lowering.calls import plain_lowering
from stillbox.models.layers.lowering.convolution import conv2d, depthwise_conv2d
from stillbox.models.layers.lowering.normalization import (
    batch_statistics,
    normalize_batch,
    normalize_groups,
)
from stillbox.models.layers.lowering.padding import Padding, padding_of
from stillbox.models.layers.lowering.pooling import max_pool

__all__ = [
    "Padding",
    "batch_statistics",
    "conv2d",
    "depthwise_conv2d",
    "max_pool",
    "normalize_batch",
    "normalize_groups",
    "padding_of",
    "plain_lowering",
]
