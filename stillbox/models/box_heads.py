"""Box heads: fully connected layers, or the last blocks of a backbone (arXiv:1506.01497).

They are fully connected layers as of a feature pyramid (arXiv:1612.03144), the last three blocks
of Inception v2 (arXiv:1502.03167), the fourth block of ResNet v1 (arXiv:1512.03385), or the end of
Inception ResNet v2 (arXiv:1602.07261). This family of parts has a file of its own: two-stage
detectors import it to register the parts.
"""

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.inception import V2_BLOCKS, InceptionBlock, width_of
from stillbox.models.backbones.inception_resnet import BLOCK_8, MIXED_7A, ResidualBlock
from stillbox.models.backbones.resnet_v1 import ResNetBlock
from stillbox.models.layers import Conv2d, Dense, build_norm
from stillbox.models.parts import BuildOptions, FeatureMap, Part
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


@implements(schema.FullyConnectedHead)
class FullyConnectedBoxHead(Part):
    """`dense_{n}` with bias and activation, then `norm_{n}`, n from 1; the last has no norm.

    Keras builds these layers one after the other, so that the norm follows the activation.
    """

    def __init__(
        self, config: schema.FullyConnectedHead, channels: int, size: int, options: BuildOptions
    ) -> None:
        conv = config.conv.without_norm(config.conv.activation)
        inputs, dense = channels * size**2, {}
        for number, width in enumerate(config.widths, start=1):
            dense[number] = Dense(inputs, width, conv, **options.layer_arguments())
            inputs = width
        norms = {
            number: build_norm(width, config.conv, frozen=options.freeze_norm)
            for number, width in enumerate(config.widths[:-1], start=1)
        }
        self.dense, self.norms = Named("dense_{}", dense), Named("norm_{}", norms)
        self.channels = inputs

    @rematerialized
    def __call__(
        self, crops: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Maps crops `[N, S, S, C]` to `[N, D]`, D being the last of the widths."""
        x = crops.reshape(crops.shape[0], -1)
        for number, layer in self.dense.items():
            x, norm = layer(x, train=train), self.norms.get(number)
            if norm is not None:
                x = norm(x[:, None, None], "none", train=train)[:, 0, 0]
        return x


_BLOCKS = ("mixed_5a", "mixed_5b", "mixed_5c")


@implements(schema.InceptionV2BlockHead)
class InceptionV2BlockBoxHead(Part):
    """Blocks `mixed_5a`, which has stride 2, `mixed_5b` and `mixed_5c`, then the mean."""

    def __init__(
        self, config: schema.InceptionV2BlockHead, channels: int, size: int, options: BuildOptions
    ) -> None:
        blocks = {}
        for name in _BLOCKS:
            blocks[name] = InceptionBlock(V2_BLOCKS[name], config, channels, options)
            channels = blocks[name].channels
        self.blocks, self.channels = Named("{}", blocks), channels

    def __call__(
        self, crops: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Maps crops `[N, S, S, C]` to `[N, D]`."""
        return jnp.mean(self.features(crops, train=train), axis=(1, 2))

    def features(self, crops: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps crops `[N, S, S, C]` to maps `[N, ceil(S / 2), ceil(S / 2), D]`."""
        x = crops
        for block in self.blocks.values():
            x = block(x, train=train)
        return x


_UNITS, _WIDTH = 3, 512


@implements(schema.ResNetBlockHead)
class ResNetBlockBoxHead(Part):
    """Units `block_4.unit_1` to `unit_3`, then the mean.

    The original's second generation strides in the first 1x1 convolutions of the block, on both
    sides of the sum, which is the same as subsampling the crop.
    """

    def __init__(
        self, config: schema.ResNetBlockHead, channels: int, size: int, options: BuildOptions
    ) -> None:
        self.block_4 = ResNetBlock(config, channels, _WIDTH, _UNITS, options)
        self.stride = config.stride
        self.channels = self.block_4.channels

    def __call__(
        self, crops: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Maps crops `[N, S, S, C]` to `[N, 2048]`."""
        return jnp.mean(self.features(crops, train=train), axis=(1, 2))

    def features(self, crops: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps crops `[N, S, S, C]` to maps `[N, ceil(S / stride), ceil(S / stride), 2048]`."""
        return self.block_4(crops[:, :: self.stride, :: self.stride], train=train)


_LAST_BLOCK, _LAST_DEPTH = 10, 1536


@implements(schema.InceptionResNetV2BlockHead)
class InceptionResNetV2BlockBoxHead(Part):
    """`mixed_7a`, which has stride 2, `block8_1` to `block8_10` and `conv_7b`, then the mean."""

    def __init__(
        self,
        config: schema.InceptionResNetV2BlockHead,
        channels: int,
        size: int,
        options: BuildOptions,
    ) -> None:
        self.mixed_7a = InceptionBlock(
            MIXED_7A, config, channels, options, stride=2, padding=config.padding
        )
        channels = self.mixed_7a.channels
        blocks = {
            number: ResidualBlock(BLOCK_8, config, channels, options, last=number == _LAST_BLOCK)
            for number in range(1, _LAST_BLOCK + 1)
        }
        self.blocks = Named("block8_{}", blocks)
        self.channels = width_of(_LAST_DEPTH, config)
        self.conv_7b = Conv2d(
            channels, self.channels, 1, 1, config.conv, **options.layer_arguments()
        )

    def __call__(
        self, crops: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Maps crops `[N, S, S, C]` to `[N, D]`."""
        return jnp.mean(self.features(crops, train=train), axis=(1, 2))

    def features(self, crops: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps crops `[N, S, S, C]` to maps `[N, s, s, D]`.

        s is half of S, rounded up; without padding half of S - 1, rounded down.
        """
        x = self.mixed_7a(crops, train=train)
        for block in self.blocks.values():
            x = block(x, train=train)
        return self.conv_7b(x, train=train)
