"""MobileNet v1 (arXiv:1704.04861; fact sheet 3.2)."""

import jax

from stillbox.errors import UserError, nearest
from stillbox.experiment import schema
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.parts import BuildOptions, Part

_ROOT_CHANNELS = 32
# Stride and channels of each depthwise/pointwise pair before the depth multiplier.
_PAIRS = (
    (1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), (1, 512),
    (1, 512), (1, 512), (1, 512), (1, 512), (2, 1024), (1, 1024),
)  # fmt: skip


class MobileNetV1(Part):
    """The network up to the last layer that anything reads.

    Layers are attributes called like their taps: `conv_0`, `conv_1_depthwise`,
    `conv_1_pointwise`, ... `conv_13_pointwise`.

    Args:
        config: widths and hyperparameters.
        taps: names of the layers whose outputs are wanted.
        options: what all layers of the detector share.

    Raises:
        UserError: a tap is no layer of this network.
    """

    def __init__(
        self, config: schema.MobileNetV1, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        names = _layer_names()
        for tap in taps:
            if tap not in names:
                fix = nearest(tap, names)
                raise UserError(f"MobileNet v1 has no layer {tap!r}", where="model.neck", fix=fix)
        self.taps = taps
        # Layers behind the last tap would be trained by nothing but their penalty.
        self.names = names[: max(names.index(tap) for tap in taps) + 1]
        self.widths = _add_layers(self, config, self.names, options)

    def __call__(self, x: jax.Array, *, train: bool) -> tuple[jax.Array, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        outputs = {}
        for name in self.names:
            x = getattr(self, name)(x, train=train)
            if name in self.taps:
                outputs[name] = x
        return tuple(outputs[tap] for tap in self.taps)

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of each tap."""
        return tuple(self.widths[self.names.index(tap)] for tap in self.taps)


def _layer_names() -> tuple[str, ...]:
    pairs = range(1, len(_PAIRS) + 1)
    kinds = ("depthwise", "pointwise")
    return ("conv_0", *(f"conv_{index}_{kind}" for index in pairs for kind in kinds))


def _add_layers(
    part: Part, config: schema.MobileNetV1, names: tuple[str, ...], options: BuildOptions
) -> tuple[int, ...]:
    """Gives `part` its layers; returns the channels of each."""

    def width(depth: int) -> int:
        return max(int(depth * config.depth_multiplier), config.min_depth)

    layers = options.layer_arguments()
    channels = width(_ROOT_CHANNELS)
    part.conv_0 = Conv2d(3, channels, 3, 2, config.conv, **layers)
    widths = [channels]
    for name in names[1:]:
        stride, depth = _PAIRS[int(name.split("_")[1]) - 1]
        if name.endswith("depthwise"):
            layer = DepthwiseConv2d(channels, 3, stride, config.conv, **layers)
        else:
            layer = Conv2d(channels, width(depth), 1, 1, config.conv, **layers)
            channels = width(depth)
        setattr(part, name, layer)
        widths.append(channels)
    return tuple(widths)
