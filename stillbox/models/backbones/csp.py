"""NanoDet-g's cross stage partial network (`nanodet/model/backbone/custom_csp.py`)."""

from typing import Any

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d
from stillbox.models.layers.resampling import max_pool
from stillbox.models.parts import BuildOptions, FeatureMap, Part, layers_in_use
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized

_SIZE = 3


class CspPair(Part):
    """`narrow` halves the channels; its result stands behind the result of `refine`."""

    def __init__(self, channels: int, conv: schema.ConvHyperparams, layers: dict[str, Any]) -> None:
        narrow = channels // 2
        self.narrow = Conv2d(channels, narrow, _SIZE, 1, conv, **layers)
        self.refine = Conv2d(narrow, channels - narrow, _SIZE, 1, conv, **layers)

    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to the same shape."""
        narrow = self.narrow(x, train=train)
        return jnp.concatenate([self.refine(narrow, train=train), narrow], axis=-1)


class CspBlock(Part):
    """`enter`, the pairs `pair_1`, `pair_2`, ... and `merge`, which stands before `enter`'s result.

    Args:
        inputs: channels of the input; the output has twice as many.
        pairs: number of pairs.
        stride: of `enter`.
        conv: hyperparameters.
        layers: keyword arguments of all layers.
    """

    def __init__(
        self,
        inputs: int,
        pairs: int,
        stride: int,
        conv: schema.ConvHyperparams,
        layers: dict[str, Any],
    ) -> None:
        self.enter = Conv2d(inputs, inputs, _SIZE, stride, conv, **layers)
        numbers = range(1, pairs + 1)
        self.pairs = Named("pair_{}", {number: CspPair(inputs, conv, layers) for number in numbers})
        self.merge = Conv2d(inputs, inputs, _SIZE, 1, conv, **layers)
        self.channels = 2 * inputs

    @rematerialized
    def __call__(self, x: FeatureMap, *, train: bool) -> FeatureMap:
        """Maps `[B, H, W, C]` to `[B, ceil(H / stride), ceil(W / stride), 2 C]`."""
        entered = x = self.enter(x, train=train)
        for pair in self.pairs.values():
            x = pair(x, train=train)
        return jnp.concatenate([self.merge(x, train=train), entered], axis=-1)


@implements(schema.Csp)
class CspBackbone(Part):
    """The strided convolution `stem`, max pooling, and `block_1` to `block_4`."""

    def __init__(self, config: schema.Csp, taps: tuple[str, ...], options: BuildOptions) -> None:
        built, self.names = layers_in_use(config, taps)
        layers = options.layer_arguments() | {"padding": "symmetric"}
        conv = config.conv
        self.stem = Conv2d(options.image_channels, config.width, _SIZE, 2, conv, **layers)
        channels, blocks = {"stem": config.width}, {}
        inputs, strides = config.width, (1, 2, 2, 2)
        for name, pairs, stride in zip(built[1:], config.pairs, strides, strict=False):
            blocks[name] = CspBlock(inputs, pairs, stride, config.conv, layers)
            inputs = channels[name] = blocks[name].channels
        self.blocks = Named("{}", blocks)
        self.taps = taps
        self.channels = tuple(channels[tap] for tap in taps)

    def __call__(
        self, x: FeatureMap, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps normalised pixels `[B, H, W, 3]` to the taps, in their order."""
        stem, x = self._halve_twice(x, train=train)
        outputs = {"stem": stem}
        for name in self.names[1:]:
            x = outputs[name] = self.blocks[name](x, train=train)
        return tuple(outputs[tap] for tap in self.taps)

    @rematerialized
    def _halve_twice(self, x: FeatureMap, *, train: bool) -> tuple[FeatureMap, FeatureMap]:
        stem = self.stem(x, train=train)
        return stem, max_pool(stem, _SIZE, 2, padding="symmetric")
