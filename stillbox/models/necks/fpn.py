"""The feature pyramid network (arXiv:1612.03144)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, SeparableConv2d
from stillbox.models.layers.conv import ConvLayer
from stillbox.models.layers.lowering.padding import padding_of
from stillbox.models.layers.resampling import upsample
from stillbox.models.parts import BuildOptions, Part, rounded
from stillbox.models.rematerialization import rematerialized


@implements(schema.Fpn)
class FpnNeck(Part):
    """From the coarsest tap down to the finest, then from the coarsest on to coarser maps.

    `projection_{n}` brings tap n (from 1, fine to coarse) to the common depth. `smoothing_{n}` is
    the 3x3 convolution after the sum of each tap but the coarsest, whose projection is a feature
    map as it is. `coarse_{n}` (from 1) halves the map before it.
    """

    def __init__(self, config: schema.Fpn, inputs: tuple[int, ...], options: BuildOptions) -> None:
        depth = max(int(config.depth * config.depth_multiplier), config.min_depth)
        layers = options.layer_arguments() | {"padding": padding_of(config.explicit_padding)}
        plain = replace(config.conv, batch_norm=None, activation="none")
        convolution: Callable[..., ConvLayer] = Conv2d
        if config.depthwise:
            convolution = partial(SeparableConv2d, pointwise_defaults=config.pointwise_defaults)
        maps = config.count_maps()
        for tap, channels in enumerate(inputs, start=1):
            setattr(self, f"projection_{tap}", Conv2d(channels, depth, 1, 1, plain, **layers))
        for tap in range(1, len(inputs)):
            setattr(
                self, f"smoothing_{tap}", convolution(depth, depth, 3, 1, config.conv, **layers)
            )
            options.add_rounding(self, f"sum_{tap}")
        self.coarse = tuple(range(1, maps - len(inputs) + 1))
        for step in self.coarse:
            setattr(self, f"coarse_{step}", convolution(depth, depth, 3, 2, config.conv, **layers))
        self.top_down_smoothed = config.top_down == "smoothed"
        self.channels = (depth,) * maps
        self.dtype = jnp.dtype(options.dtype)

    @rematerialized
    def __call__(
        self, taps: tuple[jax.Array, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps the taps to all feature maps, from fine to coarse."""
        running = self._project(len(taps), taps[-1], train=train)
        maps = [running]
        for number in range(len(taps) - 1, 0, -1):
            lateral = self._project(number, taps[number - 1], train=train)
            running = upsample_to(running, lateral)
            with jax.named_scope(f"sum_{number}"):
                running = rounded(self, f"sum_{number}", running + lateral, train=train)
            smoothed = getattr(self, f"smoothing_{number}")(running, train=train)
            maps.insert(0, smoothed)
            running = smoothed if self.top_down_smoothed else running
        for step in self.coarse:
            maps.append(getattr(self, f"coarse_{step}")(maps[-1], train=train))
        return tuple(maps)

    def _project(self, number: int, tap: jax.Array, *, train: bool) -> jax.Array:
        # Outputs with a bias are float32.
        return getattr(self, f"projection_{number}")(tap, train=train).astype(self.dtype)


def upsample_to(x: jax.Array, fine: jax.Array) -> jax.Array:
    """Doubles `[B, h, w, C]` by repetition and crops it to `fine`, `[B, H, W, C]`."""
    return upsample(x, 2)[:, : fine.shape[1], : fine.shape[2]]
