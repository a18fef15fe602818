"""Convolution layers with initialiser, penalty, normalisation and activation."""

from stillbox.models.layers.conv import Conv2d, ConvLayer, DepthwiseConv2d
from stillbox.models.layers.dense import Dense
from stillbox.models.layers.norm import NormLayer
from stillbox.models.layers.separable import SeparableConv2d

__all__ = ["Conv2d", "ConvLayer", "Dense", "DepthwiseConv2d", "NormLayer", "SeparableConv2d"]
