"""SSD's extra feature maps, the pooling pyramid, and no neck.

These necks (arXiv:1512.02325, arXiv:1807.03284) have no path from coarse maps to fine ones,
unlike the pyramids of the other files. Without a neck the backbone's taps are the feature maps.
"""

from functools import partial

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.layers.lowering.windows import padding_of
from stillbox.models.layers.resampling import max_pool
from stillbox.models.parts import BuildOptions, FeatureMap, Part
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


@implements(schema.SsdExtraLayers)
class SsdLayersNeck(Part):
    """The features, then extra maps, each smaller than the one before.

    Map k is made by `extra_{k}_1x1` and `extra_{k}_3x3`, which is strided or not padded; k counts
    the taps too, as in TF1's variable names. With depthwise convolutions `extra_{k}_depthwise`
    shrinks and `extra_{k}_3x3` is a 1x1; kernels of other sizes keep the names too.
    """

    def __init__(
        self, config: schema.SsdExtraLayers, inputs: tuple[int, ...], options: BuildOptions
    ) -> None:
        def width(depth: float) -> int:
            return max(int(depth * config.depth_multiplier), config.min_depth)

        channels = list(inputs)
        layers = options.layer_arguments()
        strides = config.extra_strides or (2,) * len(config.extra_depths)
        sizes = config.extra_kernel_sizes or (3,) * len(config.extra_depths)
        extras = zip(config.extra_depths, strides, sizes, strict=True)
        squeeze, halve, widen = {}, {}, {}
        for index, (depth, stride, size) in enumerate(extras, start=len(inputs)):
            squeezed = width(depth / 2)
            # Without a stride the map shrinks because it is not padded.
            padding = "valid" if stride == 1 else padding_of(config.explicit_padding)
            shrinking = layers | {"padding": padding}
            squeeze[index] = Conv2d(channels[-1], squeezed, 1, 1, config.conv, **layers)
            if config.depthwise:
                halve[index] = DepthwiseConv2d(squeezed, size, stride, config.conv, **shrinking)
                size, stride, shrinking = 1, 1, layers
            conv = Conv2d(squeezed, width(depth), size, stride, config.conv, **shrinking)
            widen[index] = conv
            channels.append(width(depth))
        self.squeeze = Named("extra_{}_1x1", squeeze)
        self.halve = Named("extra_{}_depthwise", halve)
        self.widen = Named("extra_{}_3x3", widen)
        self.channels = tuple(channels)

    @rematerialized
    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps the features of the backbone to all feature maps, from fine to coarse."""
        maps = list(features)
        for index, squeeze in self.squeeze.items():
            x = squeeze(maps[-1], train=train)
            if self.halve:
                x = self.halve[index](x, train=train)
            maps.append(self.widen[index](x, train=train))
        return tuple(maps)


@implements(schema.Ppn)
class PpnNeck(Part):
    """One map, projected by `base` if a depth is configured, and its max-pooled halves."""

    def __init__(self, config: schema.Ppn, inputs: tuple[int, ...], options: BuildOptions) -> None:
        (channels,) = inputs
        base = partial(Conv2d, channels, config.depth, 1, 1, config.conv)
        self.base = base(**options.layer_arguments()) if config.depth else None
        self.channels = (config.depth or channels,) * config.num_maps

    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps the feature of the backbone to all feature maps, from fine to coarse."""
        (x,) = features
        maps = [x if self.base is None else self.base(x, train=train)]
        while len(maps) < len(self.channels):
            maps.append(max_pool(maps[-1], 2, 2))
        return tuple(maps)


@implements(schema.Identity)
class IdentityNeck(Part):
    """Returns the features of the backbone unchanged."""

    def __init__(
        self, config: schema.Identity, inputs: tuple[int, ...], options: BuildOptions
    ) -> None:
        self.channels = inputs

    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Returns the features of the backbone."""
        return features
