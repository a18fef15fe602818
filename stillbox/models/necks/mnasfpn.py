"""MnasFPN (arXiv:1912.01106).

Source: `object_detection/models/ssd_mobilenet_v2_mnasfpn_feature_extractor.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, SeparableConv2d
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.resampling import max_pool, max_pool_with_zeros, upsample
from stillbox.models.parts import BuildOptions, FeatureMap, Part, make_divisible, rounded
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


class _Block(NamedTuple):
    """Two maps, numbered from the finest that enters the cell to the results of blocks."""

    inputs: tuple[int, int]
    level: int
    """The level of the result, counted from the level of the finest map."""
    size: int
    """Side of the depthwise kernel."""
    expansion: int
    """Channels of the sum before the multiplier."""


_LEVELS = 4
# The last four blocks make the maps of the cell.
_CELL = (
    _Block((1, 2), 1, 3, 256),
    _Block((0, 4), 0, 3, 128),
    _Block((5, 4), 1, 3, 128),
    _Block((4, 3), 2, 5, 128),
    _Block((4, 3), 3, 3, 96),
)
_FIRST_OUTPUT = len(_CELL) - _LEVELS


@implements(schema.MnasFpn)
class MnasFpnNeck(Part):
    """Taps and coarser maps, sent through `cell_0`, `cell_1`, ...

    `coarse_{n}` (from 1) is the 1x1 convolution behind the pooling of the map before it.
    """

    def __init__(
        self, config: schema.MnasFpn, inputs: tuple[int, ...], options: BuildOptions
    ) -> None:
        width, channels = _width(config, config.depth), inputs
        linear = replace(config.conv, activation="none", regularizer=None)
        coarse, cells = {}, {}
        for step in range(1, config.count_maps() - len(inputs) + 1):
            coarse[step] = Conv2d(channels[-1], width, 1, 1, linear, **options.layer_arguments())
            channels = (*channels, width)
        for number in range(config.num_repeats):
            cells[number] = MnasFpnCell(f"cell_{number}", config, channels, options)
            channels = (width,) * _LEVELS
        self.coarse, self.cells = Named("coarse_{}", coarse), Named("cell_{}", cells)
        self.channels, self.zeros = channels, config.explicit_padding
        self.dtype = jnp.dtype(options.dtype)

    def __call__(
        self, features: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps the features of the backbone to all feature maps, from fine to coarse."""
        maps = list(features)
        for convolve in self.coarse.values():
            x = convolve(_shrink(maps[-1], 2, self.zeros), train=train)
            maps.append(x.astype(self.dtype))
        for cell in self.cells.values():
            maps = cell(maps, train=train)
        return tuple(maps)


class MnasFpnCell(Part):
    """Blocks `block_{b}`, the last four beside shortcuts where channels agree.
    `scope` names its operations in profiles.
    """

    def __init__(
        self,
        scope: str,
        config: schema.MnasFpn,
        channels: tuple[int, ...],
        options: BuildOptions,
    ) -> None:
        before, levels = list(channels), list(range(_LEVELS))
        width, blocks = _width(config, config.depth), {}
        for number, block in enumerate(_CELL):
            inputs = tuple((before[m], levels[m] - block.level) for m in block.inputs)
            block_scope = f"{scope}/block_{number}"
            blocks[number] = MnasFpnBlock(block_scope, config, block, inputs, options)
            before.append(width)
            levels.append(block.level)
        self.blocks = Named("block_{}", blocks)
        # Of blocks with a map that is added to the result.
        sums = {
            _FIRST_OUTPUT + place: options.rounding()
            for place in range(_LEVELS)
            if channels[place] == width
        }
        self.sums = Named("block_{}_sum", sums)
        self.scope = scope

    @rematerialized
    def __call__(self, maps: Sequence[FeatureMap], *, train: bool) -> list[FeatureMap]:
        """Maps `[B, H, W, C]`, from fine to coarse, to as many of the same sizes."""
        made = [*maps]
        for number, block in self.blocks.items():
            made.append(block([made[m] for m in _CELL[number].inputs], train=train))
        # Blocks read one another's results without the shortcuts.
        outputs = made[-_LEVELS:]
        for number, rounding in self.sums.items():
            place = number - _FIRST_OUTPUT
            with jax.named_scope(f"{self.scope}/block_{number}_sum"):
                total = outputs[place] + maps[place]
                outputs[place] = rounded(rounding, total, train=train)
        return outputs


class MnasFpnBlock(Part):
    """`input_0` and `input_1` widen maps; their activated sum goes through `separable`.
    `inputs` are the channels of each map, and its level above the level of the block.
    """

    def __init__(
        self,
        scope: str,
        config: schema.MnasFpn,
        block: _Block,
        inputs: tuple[tuple[int, int], ...],
        options: BuildOptions,
    ) -> None:
        wide, layers = _width(config, block.expansion), options.layer_arguments()
        linear = replace(config.conv, activation="none")
        widen = {
            place: Conv2d(channels, wide, 1, 1, linear, **layers)
            for place, (channels, _) in enumerate(inputs)
        }
        self.inputs, self.input_sum = Named("input_{}", widen), options.rounding()
        separable = replace(linear, initializer=config.separable_initializer)
        width = _width(config, config.depth)
        self.separable = SeparableConv2d(wide, width, block.size, 1, separable, **layers)
        self.levels = tuple(level for _, level in inputs)
        self.activation, self.zeros = config.conv.activation, config.explicit_padding
        self.dtype, self.scope = jnp.dtype(options.dtype), scope

    def __call__(self, maps: Sequence[FeatureMap], *, train: bool) -> FeatureMap:
        """Maps two maps `[B, H, W, C]` to one of the block's level."""
        first, second = (self._widen(place, x, train=train) for place, x in enumerate(maps))
        with jax.named_scope(f"{self.scope}/input_sum"):
            x = ACTIVATIONS[self.activation](first + second)
            x = rounded(self.input_sum, x, train=train)
        return self.separable(x, train=train).astype(self.dtype)

    def _widen(self, place: int, x: FeatureMap, *, train: bool) -> FeatureMap:
        level = self.levels[place]
        if level < 0:
            x = _shrink(x, 2**-level, self.zeros)
        # Outputs with a bias are float32.
        x = self.inputs[place](x, train=train).astype(self.dtype)
        return upsample(x, 2**level) if level > 0 else x


def _width(config: schema.MnasFpn, depth: int) -> int:
    return make_divisible(depth * config.depth_multiplier, config.min_depth)


def _shrink(x: FeatureMap, stride: int, zeros: bool) -> FeatureMap:
    """Returns the maxima of 3x3 windows of `[B, H, W, C]`, `stride` pixels apart."""
    return (max_pool_with_zeros if zeros else max_pool)(x, 3, stride)
