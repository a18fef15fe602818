"""EfficientNet (arXiv:1905.11946; `official/vision/image_classification/efficientnet`)."""

from typing import NamedTuple

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.inverted_residual import MbConv, MbConvSpec
from stillbox.models.layers import Conv2d
from stillbox.models.layers.stochastic import fold_key
from stillbox.models.parts import BuildOptions, Part, layers_in_use, make_divisible

_STEM_CHANNELS = 32


class _Stack(NamedTuple):
    expansion: int
    size: int
    stride: int
    channels: int


# Table 1 of the paper.
_STACKS = (
    _Stack(1, 3, 1, 16),
    _Stack(6, 3, 2, 24),
    _Stack(6, 5, 2, 40),
    _Stack(6, 3, 2, 80),
    _Stack(6, 5, 1, 112),
    _Stack(6, 5, 2, 192),
    _Stack(6, 3, 1, 320),
)


@implements(schema.EfficientNet)
class EfficientNetBackbone(Part):
    """The 3x3 convolution `stem`, then blocks `stack_{s}_block_{b}`."""

    def __init__(
        self, config: schema.EfficientNet, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        def width(channels: int) -> int:
            return make_divisible(channels * config.width_coefficient)

        built, self.names = layers_in_use(config, taps)
        layers, total = options.layer_arguments(), sum(config.count_blocks())
        channels = width(_STEM_CHANNELS)
        self.stem = Conv2d(3, channels, 3, 2, config.conv, **layers)
        widths = {"stem": channels}
        for number, name in enumerate(built[1:]):
            stack, block = (int(part) for part in name.split("_")[1::2])
            expansion, size, stride, depth = _STACKS[stack]
            spec = MbConvSpec(
                inputs=channels,
                channels=(channels := width(depth)),
                stride=1 if block else stride,
                size=size,
                expansion=expansion,
                se_ratio=config.se_ratio,
                drop_connect_rate=config.drop_connect_rate * number / total,
            )
            setattr(self, name, MbConv(spec, config.conv, layers))
            widths[name] = channels
        self.taps = taps
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        outputs = {"stem": (x := self.stem(x, train=train))}
        for number, name in enumerate(self.names[1:]):
            key = fold_key(dropout_key, number)
            x = outputs[name] = getattr(self, name)(x, train=train, dropout_key=key)
        return tuple(outputs[tap] for tap in self.taps)
