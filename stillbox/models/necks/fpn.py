"""Feature pyramids: FPN, RetinaNet's, and EfficientDet's bidirectional one.

FPN is arXiv:1612.03144. RetinaNet's is arXiv:1708.02002, and `tpu/models/official/detection`.
EfficientDet's is arXiv:1911.09070, and the original's
`object_detection/models/bidirectional_feature_pyramid_generators.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, SeparableConv2d, build_norm
from stillbox.models.layers.conv import ConvLayer
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.lowering.windows import padding_of
from stillbox.models.layers.resampling import max_pool, upsample
from stillbox.models.parts import BuildOptions, FeatureMap, Part, rounded
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


@implements(schema.Fpn)
class FpnNeck(Part):
    """From the coarsest tap down to the finest, then from the coarsest on to coarser maps.

    `projection_{n}` brings tap n (from 1, fine to coarse) to the common depth. `smoothing_{n}` is
    the 3x3 convolution after the sum of each tap but the coarsest; its projection is a feature
    map as it is. `coarse_{n}` (from 1) halves the map before it.
    """

    def __init__(self, config: schema.Fpn, inputs: tuple[int, ...], options: BuildOptions) -> None:
        depth = max(int(config.depth * config.depth_multiplier), config.min_depth)
        layers = options.layer_arguments() | {"padding": padding_of(config.explicit_padding)}
        plain = config.conv.without_norm()
        convolution: Callable[..., ConvLayer] = Conv2d
        if config.depthwise:
            convolution = partial(SeparableConv2d, pointwise_defaults=config.pointwise_defaults)
        maps = config.count_maps()
        projections = {
            tap: Conv2d(channels, depth, 1, 1, plain, **layers)
            for tap, channels in enumerate(inputs, start=1)
        }
        smoothing = {
            tap: convolution(depth, depth, 3, 1, config.conv, **layers)
            for tap in range(1, len(inputs))
        }
        coarse = {
            step: convolution(depth, depth, 3, 2, config.conv, **layers)
            for step in range(1, maps - len(inputs) + 1)
        }
        self.projections = Named("projection_{}", projections)
        self.smoothing = Named("smoothing_{}", smoothing)
        self.sums = Named("sum_{}", {tap: options.rounding() for tap in smoothing})
        self.coarse = Named("coarse_{}", coarse)
        self.top_down_smoothed = config.top_down == "smoothed"
        self.channels = (depth,) * maps
        self.dtype = jnp.dtype(options.dtype)

    @rematerialized
    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps the features of the backbone to all feature maps, from fine to coarse."""
        running = self._project(len(features), features[-1], train=train)
        maps = [running]
        for number in range(len(features) - 1, 0, -1):
            lateral = self._project(number, features[number - 1], train=train)
            running = upsample_to(running, lateral)
            with jax.named_scope(f"sum_{number}"):
                running = rounded(self.sums[number], running + lateral, train=train)
            smoothed = self.smoothing[number](running, train=train)
            maps.insert(0, smoothed)
            running = smoothed if self.top_down_smoothed else running
        for halve in self.coarse.values():
            maps.append(halve(maps[-1], train=train))
        return tuple(maps)

    def _project(self, number: int, tap: FeatureMap, *, train: bool) -> FeatureMap:
        # Outputs with a bias are float32.
        return self.projections[number](tap, train=train).astype(self.dtype)


def upsample_to(x: FeatureMap, fine: FeatureMap) -> FeatureMap:
    """Doubles `[B, h, w, C]` by repetition and crops it to `fine`, `[B, H, W, C]`."""
    return upsample(x, 2)[:, : fine.shape[1], : fine.shape[2]]


@implements(schema.RetinaNetFpn)
class RetinaNetFpnNeck(Part):
    """From the coarsest tap down to the finest, on to coarser maps, then batch norm on all.

    `lateral_{l}` brings the tap of level l to the common depth, `output_{l}` is the 3x3 convolution
    after the sum, `coarse_{l}` halves the map of the level before, `norm_{l}` normalises level l.
    """

    def __init__(
        self, config: schema.RetinaNetFpn, inputs: tuple[int, ...], options: BuildOptions
    ) -> None:
        depth, normalizes = config.depth, config.conv.normalizes
        first, behind = config.min_level, config.min_level + len(inputs)
        plain = config.conv.without_norm()
        layers = options.layer_arguments() | {"bias": not normalizes or config.conv.force_bias}
        convolution = SeparableConv2d if config.depthwise else Conv2d
        lateral = {
            level: convolution(channels, depth, 1, 1, plain, **layers)
            for level, channels in enumerate(inputs, start=first)
        }
        outputs = {level: convolution(depth, depth, 3, 1, plain, **layers) for level in lateral}
        self.coarse_from_tap, coarse = config.coarse_from == "tap", {}
        for level in range(behind, config.max_level + 1):
            channels = inputs[-1] if self.coarse_from_tap and level == behind else depth
            coarse[level] = convolution(channels, depth, 3, 2, plain, **layers)
        norms = {
            level: build_norm(depth, config.conv, frozen=options.freeze_norm)
            for level in (*lateral, *coarse)
        }
        self.lateral, self.outputs = Named("lateral_{}", lateral), Named("output_{}", outputs)
        self.coarse, self.norms = Named("coarse_{}", coarse), Named("norm_{}", norms)
        self.first = first
        self.activation = config.conv.activation
        self.channels = (depth,) * config.count_maps()
        self.dtype = jnp.dtype(options.dtype)

    @rematerialized
    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps the features of the backbone to all feature maps, from fine to coarse."""
        maps = self._descend(features, train=train)
        behind = self.first + len(features)
        for level, halve in self.coarse.items():
            above = maps[level - 1]
            if level > behind:
                above = ACTIVATIONS[self.activation](above)
            elif self.coarse_from_tap:
                above = features[-1]
            maps[level] = self._convolve(halve, above, train=train)
        return tuple(self._normalize(level, maps[level], train=train) for level in sorted(maps))

    def _descend(self, features: tuple[FeatureMap, ...], *, train: bool) -> dict[int, FeatureMap]:
        """Returns the maps of the backbone's levels."""
        maps: dict[int, FeatureMap] = {}
        running = None
        for level, tap in reversed(list(enumerate(features, start=self.first))):
            lateral = self._convolve(self.lateral[level], tap, train=train)
            running = lateral if running is None else upsample(running, 2) + lateral
            maps[level] = self._convolve(self.outputs[level], running, train=train)
        return maps

    def _convolve(self, layer: ConvLayer, x: FeatureMap, *, train: bool) -> FeatureMap:
        # Outputs with a bias are float32.
        return layer(x, train=train).astype(self.dtype)

    def _normalize(self, level: int, x: FeatureMap, *, train: bool) -> FeatureMap:
        norm = self.norms[level]
        return x if norm is None else norm(x, "none", train=train)


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
        cells = {}
        for number in range(config.num_repeats):
            cells[number] = BiFpnCell(config, channels, options)
            channels = (None,) * maps
        self.cells = Named("cell_{}", cells)
        self.channels = (config.depth,) * maps

    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps the features of the backbone to all feature maps, from fine to coarse."""
        maps = list(features)
        while len(maps) < len(self.channels):
            x = self.coarse(maps[-1], train=train) if len(maps) == len(features) else maps[-1]
            maps.append(max_pool(x, 3, 2))
        for cell in self.cells.values():
            maps = cell(maps, train=train)
        return tuple(maps)


class BiFpnCell(Part):
    """Sums `down_{m}` of map m and the coarser one, then `up_{m}` of m and the finer one.

    Map 0 is the finest. An upward sum also reads the downward one of its map.
    `channels` of maps that come from the backbone are numbers, others are None.
    """

    def __init__(
        self, config: schema.BiFpn, channels: tuple[int | None, ...], options: BuildOptions
    ) -> None:
        self.last = len(channels) - 1
        down = {
            place: MapSum(config, 2, channels[place], options)
            for place in reversed(range(self.last))
        }
        up = {
            place: MapSum(config, 2 if place == self.last else 3, channels[place], options)
            for place in range(1, self.last + 1)
        }
        self.down, self.up = Named("down_{}", down), Named("up_{}", up)

    @rematerialized
    def __call__(self, maps: Sequence[FeatureMap], *, train: bool) -> list[FeatureMap]:
        """Maps `[B, H, W, C]`, from fine to coarse, to as many of the same sizes."""
        down = [*maps]
        for place, join in self.down.items():
            coarser = upsample_to(down[place + 1], maps[place])
            down[place] = join((maps[place], coarser), train=train)
        up = [down[0]]
        for place, join in self.up.items():
            beside = (maps[place], down[place]) if place < self.last else (maps[place],)
            finer = max_pool(up[-1], 3, 2)
            up.append(join((*beside, finer), train=train))
        return up


class MapSum(Part):
    """The sum of maps by `weights`, `[count, 1]`, activated, and its convolution `conv`.

    `project` brings the first map to the common depth if it is a tap of `channels` channels. In
    integers, `sum_{n}` rounds the sum with map n.
    """

    def __init__(
        self, config: schema.BiFpn, count: int, channels: int | None, options: BuildOptions
    ) -> None:
        self.project = None if channels is None else _projection(channels, config, options)
        weighted = config.combine != "sum"
        self.weights = nnx.Param(jnp.ones((count, 1), jnp.float32)) if weighted else None
        self.sums = Named("sum_{}", {number: options.rounding() for number in range(1, count)})
        linear = replace(config.conv, activation="none")
        layers = options.layer_arguments()
        self.conv = SeparableConv2d(config.depth, config.depth, 3, 1, linear, **layers)
        self.normalized = config.combine == "fast_attention"
        self.activation = config.conv.activation
        self.dtype = jnp.dtype(options.dtype)

    def __call__(self, maps: Sequence[FeatureMap], *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` of one size to one `[B, H, W, depth]`."""
        first, *others = maps
        if self.project is not None:
            first = self.project(first, train=train)
        total, *others = self._weighted([x.astype(self.dtype) for x in (first, *others)])
        for number, x in enumerate(others, start=1):
            with jax.named_scope(self.conv.scope_beside(f"sum_{number}")):
                total = total + x
                if number == len(others):
                    total = ACTIVATIONS[self.activation](total)
                total = rounded(self.sums[number], total, train=train)
        # Outputs with a bias and no norm are float32.
        return self.conv(total, train=train).astype(self.dtype)

    def _weighted(self, maps: list[FeatureMap]) -> list[FeatureMap]:
        if self.weights is None:
            return maps
        weights = self.weights[:, 0]
        if self.normalized:
            weights = jax.nn.relu(weights)
            weights = weights / (jnp.sum(weights) + _LEAST_SUM)
        factors = [*weights.astype(self.dtype)]
        return [x * factor for x, factor in zip(maps, factors, strict=True)]


def _projection(channels: int, config: schema.BiFpn, options: BuildOptions) -> Conv2d:
    linear = replace(config.conv, activation="none")
    return Conv2d(channels, config.depth, 1, 1, linear, **options.layer_arguments())
