"""NanoDet's path aggregation network without convolutions (`nanodet/model/fpn/pan.py`)."""

from dataclasses import replace

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d
from stillbox.models.layers.resampling import double, halve
from stillbox.models.parts import BuildOptions, FeatureMap, Part
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


@implements(schema.Pan)
class PanNeck(Part):
    """`lateral_{l}` brings the tap of level l to the common depth; sums from there on.

    From coarse to fine a doubled map is added to the lateral of the finer level, then from fine to
    coarse a halved map to the sum of the coarser level.
    """

    def __init__(self, config: schema.Pan, inputs: tuple[int, ...], options: BuildOptions) -> None:
        linear, layers = replace(config.conv, activation="none"), options.layer_arguments()
        laterals = {
            level: Conv2d(channels, config.depth, 1, 1, linear, **layers)
            for level, channels in enumerate(inputs, start=config.min_level)
        }
        self.laterals = Named("lateral_{}", laterals)
        self.channels = (config.depth,) * len(inputs)
        self.dtype = options.dtype

    @rematerialized
    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps the features of the backbone to as many feature maps, from fine to coarse."""
        laterals = zip(self.laterals.values(), features, strict=True)
        # Outputs with a bias are float32.
        maps = [layer(tap, train=train).astype(self.dtype) for layer, tap in laterals]
        for place in reversed(range(len(maps) - 1)):
            maps[place] = maps[place] + double(maps[place + 1])
        for place in range(1, len(maps)):
            maps[place] = maps[place] + halve(maps[place - 1])
        return tuple(maps)
