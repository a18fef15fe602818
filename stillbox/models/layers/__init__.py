"""Convolutions with what belongs to them: initialiser, penalty, normalisation, activation."""

from stillbox.models.layers.conv import Conv2d, ConvLayer, DepthwiseConv2d, SeparableConv2d
from stillbox.models.layers.norm import BatchNorm

__all__ = ["BatchNorm", "Conv2d", "ConvLayer", "DepthwiseConv2d", "SeparableConv2d"]
