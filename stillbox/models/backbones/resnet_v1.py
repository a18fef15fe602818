"""ResNet v1 with bottleneck units (arXiv:1512.03385; `slim/nets/resnet_v1.py`)."""

from dataclasses import replace

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.resampling import max_pool
from stillbox.models.parts import BuildOptions, FeatureMap, Part, layers_in_use
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized

_ROOT_CHANNELS = 64
_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_EXPANSION = 4
# Stride of the first block.
_FIRST_STRIDE = 4

Units = schema.ResNetV1 | schema.ResNetBlockHead
"""What configures units: their hyperparameters and the activation of their sum."""


@implements(schema.ResNetV1)
class ResNetV1Backbone(Part):
    """The 7x7 convolution `root` and the blocks `block_1` to `block_4` of units `unit_{u}`.

    Each block's output is tapped before it is subsampled by 2 for the next block, or is strided in
    its last unit. At the output stride that is left out, and the 3x3 convolutions of the next block
    are dilated instead.
    """

    def __init__(
        self, config: schema.ResNetV1, taps: tuple[str, ...], options: BuildOptions
    ) -> None:
        built, self.names = layers_in_use(config, taps)
        self.taps = taps
        layers = options.layer_arguments()
        # slim pads strided layers alike on all sides.
        self.root = Conv2d(
            options.image_channels, _ROOT_CHANNELS, 7, 2, config.conv, padding="symmetric", **layers
        )
        channels = _ROOT_CHANNELS
        widths, halved, blocks = {"root": channels}, ["root"], {}
        for index, name in enumerate(built[1:]):
            width, stride = _ROOT_CHANNELS * 2**index, _FIRST_STRIDE * 2**index
            units = _UNITS[config.depth][index]
            halves = stride < config.output_stride
            steps = {
                "dilation": max(1, stride // config.output_stride),
                "stride": 2 if halves and config.stride_in_unit else 1,
            }
            blocks[name] = ResNetBlock(config, channels, width, units, options, **steps)
            channels = widths[name] = width * _EXPANSION
            if halves and not config.stride_in_unit:
                halved.append(name)
        self.blocks = Named("{}", blocks)
        self.channels = tuple(widths[tap] for tap in taps)
        self.halved = tuple(halved)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, C]` to the taps, in their order."""
        outputs = {}
        outputs["root"], x = self._halve_twice(x, train=train)
        for name in self.names[1:]:
            x = outputs[name] = self.blocks[name](x, train=train)
            if name in self.halved:
                x = max_pool(x, 1, 2)
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _halve_twice(self, x: FeatureMap, *, train: bool) -> tuple[FeatureMap, FeatureMap]:
        root = self.root(x, train=train)
        return root, max_pool(root, 3, 2)


class ResNetBlock(Part):
    """Units `unit_1`, `unit_2`, ... with `width` channels inside and four times as many outside.

    The last one has the stride.
    """

    def __init__(
        self,
        config: Units,
        inputs: int,
        width: int,
        units: int,
        options: BuildOptions,
        *,
        dilation: int = 1,
        stride: int = 1,
    ) -> None:
        self.channels, made = width * _EXPANSION, {}
        for number in range(1, units + 1):
            steps = {"dilation": dilation, "stride": stride if number == units else 1}
            made[number] = BottleneckUnit(config, inputs, width, options, **steps)
            inputs = self.channels
        self.units = Named("unit_{}", made)

    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), 4 * width]`."""
        for unit in self.units.values():
            x = unit(x, train=train)
        return x


class BottleneckUnit(Part):
    """`conv_1` (1x1), `conv_2` (3x3), `conv_3` (1x1), and `shortcut` if the channels change.

    `conv_2` has the stride.
    """

    def __init__(
        self,
        config: Units,
        inputs: int,
        width: int,
        options: BuildOptions,
        *,
        dilation: int = 1,
        stride: int = 1,
    ) -> None:
        layers = options.layer_arguments()
        outputs = width * _EXPANSION
        linear = replace(config.conv, activation="none")
        changes = inputs != outputs
        self.shortcut = Conv2d(inputs, outputs, 1, stride, linear, **layers) if changes else None
        self.conv_1 = Conv2d(inputs, width, 1, 1, config.conv, **layers)
        spatial = {"dilation": dilation, "padding": "same" if stride == 1 else "symmetric"}
        self.conv_2 = Conv2d(width, width, 3, stride, config.conv, **layers | spatial)
        self.conv_3 = Conv2d(width, outputs, 1, 1, linear, **layers)
        self.activation, self.stride = config.unit_activation, stride

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), 4 * width]`."""
        if self.shortcut is not None:
            shortcut = self.shortcut(x, train=train)
        else:
            shortcut = x if self.stride == 1 else max_pool(x, 1, self.stride)
        residual = self.conv_2(self.conv_1(x, train=train), train=train)
        return ACTIVATIONS[self.activation](shortcut + self.conv_3(residual, train=train))
