"""EfficientDet's bidirectional feature pyramid (arXiv:1911.09070).

The original's `object_detection/models/bidirectional_feature_pyramid_generators.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, SeparableConv2d
from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.pooling import max_pool
from stillbox.models.necks.fpn import upsample_to
from stillbox.models.parts import BuildOptions, Part
from stillbox.models.rematerialization import rematerialized

_LEAST_SUM = 1e-4


@implements(schema.BiFpn)
class BiFpnNeck(Part):
    """Taps and their max-pooled halves, sent through `cell_0`, `cell_1`, ...

    `coarse` is the 1x1 convolution of the coarsest tap in front of the pooling. Other taps get
    theirs where the first cell reads them.

    Raises:
        UserError: no level is coarser than the backbone's.
    """

    def __init__(
        self, config: schema.BiFpn, inputs: tuple[int, ...], options: BuildOptions
    ) -> None:
        maps = config.count_maps()
        if maps <= len(inputs):
            raise UserError(
                f"a bifpn ends above the backbone's levels, not at {config.max_level}",
                where="model.neck.max_level",
                fix=f"set it to {config.max_level + 1} or more",
            )
        self.coarse = _projection(inputs[-1], config, options)
        # A map that was pooled has the common depth.
        channels: tuple[int | None, ...] = (*inputs, *[None] * (maps - len(inputs)))
        self.cells = tuple(f"cell_{number}" for number in range(config.num_repeats))
        for name in self.cells:
            setattr(self, name, BiFpnCell(config, channels, options))
            channels = (None,) * maps
        self.channels = (config.depth,) * maps

    def __call__(
        self, taps: tuple[jax.Array, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps the taps to all feature maps, from fine to coarse."""
        maps = list(taps)
        while len(maps) < len(self.channels):
            x = self.coarse(maps[-1], train=train) if len(maps) == len(taps) else maps[-1]
            maps.append(max_pool(x, 3, 2))
        for name in self.cells:
            maps = getattr(self, name)(maps, train=train)
        return tuple(maps)


class BiFpnCell(Part):
    """Sums `down_{m}` of map m and the coarser one, then `up_{m}` of m and the finer one.

    Map 0 is the finest. An upward sum also reads the downward one of its map.

    Args:
        config: of the neck.
        channels: of the maps that are taps of the backbone, None for others.
        options: as for all layers.
    """

    def __init__(
        self, config: schema.BiFpn, channels: tuple[int | None, ...], options: BuildOptions
    ) -> None:
        self.last = len(channels) - 1
        for place in reversed(range(self.last)):
            setattr(self, f"down_{place}", MapSum(config, 2, channels[place], options))
        for place in range(1, self.last + 1):
            count = 2 if place == self.last else 3
            setattr(self, f"up_{place}", MapSum(config, count, channels[place], options))

    @rematerialized
    def __call__(self, maps: Sequence[jax.Array], *, train: bool) -> list[jax.Array]:
        """Maps `[B, H, W, C]`, from fine to coarse, to as many of the same sizes."""
        down = [*maps]
        for place in reversed(range(self.last)):
            coarser = upsample_to(down[place + 1], maps[place])
            down[place] = getattr(self, f"down_{place}")((maps[place], coarser), train=train)
        up = [down[0]]
        for place in range(1, self.last + 1):
            own = (maps[place], down[place]) if place < self.last else (maps[place],)
            finer = max_pool(up[-1], 3, 2)
            up.append(getattr(self, f"up_{place}")((*own, finer), train=train))
        return up


class MapSum(Part):
    """The sum of maps by `weights`, `[count, 1]`, activated, and its convolution `conv`.

    `project` brings the first map to the common depth if it is a tap of `channels` channels.
    """

    def __init__(
        self, config: schema.BiFpn, count: int, channels: int | None, options: BuildOptions
    ) -> None:
        if channels is not None:
            self.project = _projection(channels, config, options)
        if config.combine != "sum":
            self.weights = nnx.Param(jnp.ones((count, 1), jnp.float32))
        linear = replace(config.conv, activation="none")
        layers = options.layer_arguments()
        self.conv = SeparableConv2d(config.depth, config.depth, 3, 1, linear, **layers)
        self.normalized = config.combine == "fast_attention"
        self.activation = config.conv.activation
        self.dtype = jnp.dtype(options.dtype)

    def __call__(self, maps: Sequence[jax.Array], *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` of one size to one `[B, H, W, depth]`."""
        first, *others = maps
        if hasattr(self, "project"):
            first = self.project(first, train=train)
        weighted = [
            x.astype(self.dtype) * weight
            for x, weight in zip((first, *others), self._factors(len(maps)), strict=True)
        ]
        total = ACTIVATIONS[self.activation](sum(weighted[1:], start=weighted[0]))
        # Outputs with a bias and no norm are float32.
        return self.conv(total, train=train).astype(self.dtype)

    def _factors(self, count: int) -> Sequence[jax.Array | int]:
        if not hasattr(self, "weights"):
            return [1] * count
        weights = self.weights[:, 0]
        if self.normalized:
            weights = jax.nn.relu(weights)
            weights = weights / (jnp.sum(weights) + _LEAST_SUM)
        return [*weights.astype(self.dtype)]


def _projection(channels: int, config: schema.BiFpn, options: BuildOptions) -> Conv2d:
    linear = replace(config.conv, activation="none")
    return Conv2d(channels, config.depth, 1, 1, linear, **options.layer_arguments())
