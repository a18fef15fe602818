"""Convolution layers with initialiser, penalty, normalisation and activation."""

from stillbox.models.layers.conv import Conv2d, ConvLayer, Dense, DepthwiseConv2d, SeparableConv2d
from stillbox.models.layers.norm import AnyNorm, NormLayer, build_norm

__all__ = [
    "AnyNorm",
    "Conv2d",
    "ConvLayer",
    "Dense",
    "DepthwiseConv2d",
    "NormLayer",
    "SeparableConv2d",
    "build_norm",
]
