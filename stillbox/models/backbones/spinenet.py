"""SpineNet (arXiv:1912.05027)."""

from dataclasses import dataclass, replace

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.residual import (
    EXPANSION,
    BlockGroup,
    BlockKind,
    BlockOptions,
    output_channels,
    residual_group,
)
from stillbox.models.backbones.scale_permuted import NodeSpec, ScalePermutedBackbone
from stillbox.models.layers import Conv2d
from stillbox.models.layers.pooling import max_pool
from stillbox.models.layers.resampling import upsample
from stillbox.models.parts import BuildOptions, Part
from stillbox.models.rematerialization import rematerialized

_STEM_CHANNELS = 64
# Width of a block by its level, before the scale; a bottleneck has four times as many outputs.
_WIDTHS = {1: 32, 2: 64, 3: 128, 4: 256, 5: 256, 6: 256, 7: 256}


@implements(schema.SpineNet)
class SpineNetBackbone(ScalePermutedBackbone):
    """Residual blocks and bottlenecks after a stem of a 7x7 convolution and a pooling."""

    def __init__(
        self, config: schema.SpineNet, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        super().__init__(config, taps, _Components(config, options), options)


@dataclass(frozen=True)
class _Components:
    config: schema.SpineNet
    options: BuildOptions
    pools_stem: bool = True

    def stem(self) -> tuple[Conv2d, BlockGroup, BlockGroup]:
        config, width = self.config, self._width(2)
        layers = self.options.layer_arguments() | {"padding": "symmetric"}
        convolution = Conv2d(3, _STEM_CHANNELS, 7, 2, config.conv, **layers)
        shared = BlockOptions(config.conv, self.options)
        first = residual_group("bottleneck", _STEM_CHANNELS, width, config.repeats, shared)
        second = residual_group("bottleneck", first.channels, width, config.repeats, shared)
        return convolution, first, second

    def channels(self, level: int, kind: str) -> int:
        return output_channels(_residual(kind), self._width(level))

    def group(self, spec: NodeSpec, drop_connect_rate: float) -> BlockGroup:
        shared = BlockOptions(self.config.conv, self.options, drop_connect_rate=drop_connect_rate)
        width, repeats = self._width(spec.level), self.config.repeats
        return residual_group(_residual(spec.kind), spec.channels, width, repeats, shared)

    def resample(self, source: NodeSpec, target: NodeSpec) -> "Resample":
        return Resample(source, target, self.config, self.options)

    def _width(self, level: int) -> int:
        return max(int(_WIDTHS[level] * self.config.filter_scale), 1)


def _residual(kind: str) -> BlockKind:
    return "bottleneck" if kind == "bottleneck" else "residual"


class Resample(Part):
    """From one level to another in few channels: `squeeze`, `halve` on the way down, `expand`.

    On the way down a pooling follows the strided convolution if more than a half is needed; on the
    way up pixels are repeated.
    """

    def __init__(
        self, source: NodeSpec, target: NodeSpec, config: schema.SpineNet, options: BuildOptions
    ) -> None:
        layers = options.layer_arguments() | {"padding": "symmetric"}
        linear = replace(config.conv, activation="none")
        base = source.channels // (EXPANSION if source.kind == "bottleneck" else 1)
        width = max(int(base * config.resample_alpha), 1)
        self.steps = target.level - source.level
        self.squeeze = Conv2d(source.channels, width, 1, 1, config.conv, **layers)
        if self.steps > 0:
            self.halve = Conv2d(width, width, 3, 2, config.conv, **layers)
        self.expand = Conv2d(width, target.channels, 1, 1, linear, **layers)

    @rematerialized
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, H / 2^steps, W / 2^steps, D]`."""
        x = self.squeeze(x, train=train)
        if self.steps > 0:
            x = self.halve(x, train=train)
        if self.steps > 1:
            x = max_pool(x, 3 if self.steps == 2 else 5, 2 ** (self.steps - 1))
        if self.steps < 0:
            x = upsample(x, 2**-self.steps)
        return self.expand(x, train=train)
