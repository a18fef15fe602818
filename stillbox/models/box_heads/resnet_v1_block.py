"""The fourth block of ResNet v1 as a box head (arXiv:1506.01497, arXiv:1512.03385)."""

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.resnet_v1 import ResNetBlock
from stillbox.models.parts import BuildOptions, Part

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
        self, crops: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Maps crops `[N, S, S, C]` to `[N, 2048]`."""
        return jnp.mean(self.features(crops, train=train), axis=(1, 2))

    def features(self, crops: jax.Array, *, train: bool) -> jax.Array:
        """Maps crops `[N, S, S, C]` to maps `[N, ceil(S / stride), ceil(S / stride), 2048]`."""
        return self.block_4(crops[:, :: self.stride, :: self.stride], train=train)
