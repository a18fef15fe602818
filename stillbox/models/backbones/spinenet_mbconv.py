"""SpineNet of inverted residuals, for mobile devices (arXiv:1912.05027)."""

from dataclasses import dataclass, replace

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.inverted_residual import MbConv, MbConvSpec
from stillbox.models.backbones.residual import BlockGroup
from stillbox.models.backbones.scale_permuted import NodeSpec, ScalePermutedBackbone
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.layers.resampling import upsample
from stillbox.models.parts import BuildOptions, Part, make_divisible
from stillbox.models.rematerialization import rematerialized

# Channels of a block by its level, before the scale; the stem's convolution has those of level 0.
_WIDTHS = {0: 8, 1: 16, 2: 24, 3: 40, 4: 80, 5: 112, 6: 112, 7: 112}
_EXPANSION = 6


@implements(schema.SpineNetMbConv)
class SpineNetMbConvBackbone(ScalePermutedBackbone):
    """Inverted residuals after a 3x3 convolution."""

    def __init__(
        self, config: schema.SpineNetMbConv, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        super().__init__(config, taps, _Components(config, options), options)


@dataclass(frozen=True)
class _Components:
    config: schema.SpineNetMbConv
    options: BuildOptions
    pools_stem: bool = False

    def stem(self) -> tuple[Conv2d, BlockGroup, BlockGroup]:
        layers = self.options.layer_arguments() | {"padding": "symmetric"}
        widths = [self._width(level) for level in range(3)]
        convolution = Conv2d(3, widths[0], 3, 2, self.config.conv, **layers)
        first = self._group(widths[0], widths[1], stride=1)
        return convolution, first, self._group(widths[1], widths[2], stride=2)

    def channels(self, level: int, kind: str) -> int:
        return self._width(level)

    def group(self, spec: NodeSpec, drop_connect_rate: float) -> BlockGroup:
        return self._group(spec.channels, spec.channels, rate=drop_connect_rate)

    def resample(self, source: NodeSpec, target: NodeSpec) -> "SeparableResample":
        return SeparableResample(source, target, self.config, self.options)

    def _group(
        self, inputs: int, channels: int, *, stride: int = 1, rate: float = 0.0
    ) -> BlockGroup:
        layers = self.options.layer_arguments() | {"padding": "symmetric"}
        first = MbConvSpec(
            inputs,
            channels,
            stride,
            expansion=_EXPANSION,
            se_ratio=self.config.se_ratio,
            drop_connect_rate=rate,
        )
        other = replace(first, inputs=channels, stride=1)
        return BlockGroup(
            MbConv(spec, self.config.conv, layers, depthwise=_depthwise(self.config))
            for spec in (first, *[other] * (self.config.repeats - 1))
        )

    def _width(self, level: int) -> int:
        return make_divisible(_WIDTHS[level] * self.config.filter_scale)


class SeparableResample(Part):
    """From one level to another: depthwise `halve_{s}` for each step down, then `match`.

    On the way up pixels are repeated.
    """

    def __init__(
        self,
        source: NodeSpec,
        target: NodeSpec,
        config: schema.SpineNetMbConv,
        options: BuildOptions,
    ) -> None:
        layers = options.layer_arguments() | {"padding": "symmetric"}
        self.steps = target.level - source.level
        for step in range(1, self.steps + 1):
            halve = DepthwiseConv2d(source.channels, 3, 2, _depthwise(config), **layers)
            setattr(self, f"halve_{step}", halve)
        linear = replace(config.conv, activation="none")
        self.match = Conv2d(source.channels, target.channels, 1, 1, linear, **layers)

    @rematerialized
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` to `[B, H / 2^steps, W / 2^steps, D]`."""
        for step in range(1, self.steps + 1):
            x = getattr(self, f"halve_{step}")(x, train=train)
        if self.steps < 0:
            x = upsample(x, 2**-self.steps)
        return self.match(x, train=train)


def _depthwise(config: schema.SpineNetMbConv) -> schema.ConvHyperparams:
    return replace(config.conv, initializer=config.depthwise_initializer)
