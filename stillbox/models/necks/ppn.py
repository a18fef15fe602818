"""The pooling pyramid network (arXiv:1807.03284)."""

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d
from stillbox.models.layers.pooling import max_pool
from stillbox.models.parts import BuildOptions, Part


@implements(schema.Ppn)
class PpnNeck(Part):
    """One map, projected by `base` if a depth is configured, and its max-pooled halves."""

    def __init__(self, config: schema.Ppn, inputs: tuple[int, ...], options: BuildOptions) -> None:
        (channels,) = inputs
        if config.depth:
            layers = options.layer_arguments()
            self.base = Conv2d(channels, config.depth, 1, 1, config.conv, **layers)
        self.channels = (config.depth or channels,) * config.num_maps

    def __call__(
        self, taps: tuple[jax.Array, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps the tap to all feature maps, from fine to coarse."""
        (x,) = taps
        maps = [self.base(x, train=train) if hasattr(self, "base") else x]
        while len(maps) < len(self.channels):
            maps.append(max_pool(maps[-1], 2, 2))
        return tuple(maps)
