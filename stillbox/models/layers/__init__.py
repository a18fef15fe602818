"""Convolutions with what belongs to them: initialiser, penalty, normalisation, activation."""

from stillbox.models.layers.conv import Conv2d, ConvLayer, DepthwiseConv2d

__all__ = ["Conv2d", "ConvLayer", "DepthwiseConv2d"]
