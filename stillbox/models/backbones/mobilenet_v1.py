"""MobileNet v1 (arXiv:1704.04861; `slim/nets/mobilenet_v1.py`)."""

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.layers.lowering.padding import padding_of
from stillbox.models.parts import BuildOptions, Part, blocks_of, layers_in_use
from stillbox.models.rematerialization import rematerialized

_ROOT_CHANNELS = 32
# Stride and channels of each depthwise/pointwise pair before the depth multiplier; the channels
# of the last two are configured.
_PAIRS = (
    (1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), (1, 512),
    (1, 512), (1, 512), (1, 512), (1, 512), (2, None), (1, None),
)  # fmt: skip


@implements(schema.MobileNetV1)
class MobileNetV1Backbone(Part):
    """Layers `conv_0`, `conv_1_depthwise`, `conv_1_pointwise`, ... `conv_13_pointwise`."""

    def __init__(
        self, config: schema.MobileNetV1, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps = taps
        widths = _add_layers(self, config, built, options)
        self.channels = tuple(widths[tap] for tap in taps)

    def __call__(
        self, x: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        outputs: dict[str, jax.Array] = {}
        for names in blocks_of(self.names):
            outputs |= self._block(x, names, train=train)
            x = outputs[names[-1]]
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _block(self, x: jax.Array, names: tuple[str, ...], *, train: bool) -> dict[str, jax.Array]:
        return {name: (x := getattr(self, name)(x, train=train)) for name in names}


def _add_layers(
    part: Part, config: schema.MobileNetV1, names: tuple[str, ...], options: BuildOptions
) -> dict[str, int]:
    """Adds its layers to `part`; returns the channels of each."""

    def width(depth: int) -> int:
        return max(int(depth * config.depth_multiplier), config.min_depth)

    layers = options.layer_arguments() | {"padding": padding_of(config.explicit_padding)}

    def inner(depth: int) -> int:
        return int(depth * config.inner_multiplier)

    channels = width(inner(_ROOT_CHANNELS))
    part.conv_0 = Conv2d(3, channels, 3, 2, config.conv, **layers)
    widths = {"conv_0": channels}
    for name in names[1:]:
        pair = int(name.split("_")[1]) - 1
        stride, depth = _PAIRS[pair]
        if name.endswith("depthwise"):
            layer = DepthwiseConv2d(channels, 3, stride, config.conv, **layers)
        else:
            wide = width(inner(depth) if depth else config.last_depths[pair - len(_PAIRS)])
            layer = Conv2d(channels, wide, 1, 1, config.conv, **layers)
            channels = wide
        setattr(part, name, layer)
        widths[name] = channels
    return widths
