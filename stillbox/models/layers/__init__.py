"""Convolution layers with initialiser, penalty, normalisation and activation."""

from stillbox.models.layers.conv import Conv2d, ConvLayer, Dense, DepthwiseConv2d, SeparableConv2d
from stillbox.models.layers.norm import NormLayer

__all__ = ["Conv2d", "ConvLayer", "Dense", "DepthwiseConv2d", "NormLayer", "SeparableConv2d"]
