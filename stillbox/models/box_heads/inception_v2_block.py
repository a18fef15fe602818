"""The last three blocks of Inception v2 as a box head (arXiv:1506.01497, arXiv:1502.03167)."""

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.backbones.inception_v2 import InceptionBlock
from stillbox.models.parts import BuildOptions, Part

_BLOCKS = ("mixed_5a", "mixed_5b", "mixed_5c")


@implements(schema.InceptionV2BlockHead)
class InceptionV2BlockBoxHead(Part):
    """Blocks `mixed_5a`, which has stride 2, `mixed_5b` and `mixed_5c`, then the mean."""

    def __init__(
        self, config: schema.InceptionV2BlockHead, channels: int, size: int, options: BuildOptions
    ) -> None:
        for name in _BLOCKS:
            block = InceptionBlock(name, config, channels, options)
            setattr(self, name, block)
            channels = block.channels
        self.channels = channels

    def __call__(
        self, crops: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Maps crops `[N, S, S, C]` to `[N, D]`."""
        return jnp.mean(self.features(crops, train=train), axis=(1, 2))

    def features(self, crops: jax.Array, *, train: bool) -> jax.Array:
        """Maps crops `[N, S, S, C]` to maps `[N, ceil(S / 2), ceil(S / 2), D]`."""
        x = crops
        for name in _BLOCKS:
            x = getattr(self, name)(x, train=train)
        return x
