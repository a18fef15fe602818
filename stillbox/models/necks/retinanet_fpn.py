"""RetinaNet's feature pyramid (arXiv:1708.02002; `tpu/models/official/detection`)."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, NormLayer, SeparableConv2d
from stillbox.models.layers.activations import ACTIVATIONS
from stillbox.models.layers.penalties import norm_regularizer
from stillbox.models.layers.resampling import upsample
from stillbox.models.parts import BuildOptions, Part
from stillbox.models.rematerialization import rematerialized


@implements(schema.RetinaNetFpn)
class RetinaNetFpnNeck(Part):
    """From the coarsest tap down to the finest, on to coarser maps, then batch norm on all.

    `lateral_{l}` brings the tap of level l to the common depth, `output_{l}` is the 3x3 convolution
    after the sum, `coarse_{l}` halves the map of the level before, `norm_{l}` normalises level l.
    """

    def __init__(
        self, config: schema.RetinaNetFpn, inputs: tuple[int, ...], options: BuildOptions
    ) -> None:
        depth, norm = config.depth, config.conv.batch_norm
        first, behind = config.min_level, config.min_level + len(inputs)
        plain = replace(config.conv, batch_norm=None, activation="none")
        layers = options.layer_arguments() | {"bias": norm is None or config.conv.force_bias}
        convolution = SeparableConv2d if config.depthwise else Conv2d
        for level, channels in enumerate(inputs, start=first):
            lateral = convolution(channels, depth, 1, 1, plain, **layers)
            setattr(self, f"lateral_{level}", lateral)
        for level in range(first, behind):
            setattr(self, f"output_{level}", convolution(depth, depth, 3, 1, plain, **layers))
        for level in range(behind, config.max_level + 1):
            setattr(self, f"coarse_{level}", convolution(depth, depth, 3, 2, plain, **layers))
        if norm is not None:
            penalty, frozen = norm_regularizer(config.conv), options.freeze_norm
            for level in range(first, config.max_level + 1):
                layer = NormLayer(depth, norm, frozen=frozen, regularizer=penalty)
                setattr(self, f"norm_{level}", layer)
        self.first, self.coarse = first, tuple(range(behind, config.max_level + 1))
        self.activation = config.conv.activation
        self.channels = (depth,) * config.count_maps()
        self.dtype = jnp.dtype(options.dtype)

    @rematerialized
    def __call__(
        self, taps: tuple[jax.Array, ...], *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps the taps to all feature maps, from fine to coarse."""
        maps = self._descend(taps, train=train)
        for level in self.coarse:
            above = maps[level - 1]
            if level > self.coarse[0]:
                above = ACTIVATIONS[self.activation](above)
            maps[level] = self._convolve(f"coarse_{level}", above, train=train)
        return tuple(self._normalize(level, maps[level], train=train) for level in sorted(maps))

    def _descend(self, taps: tuple[jax.Array, ...], *, train: bool) -> dict[int, jax.Array]:
        """Returns the maps of the backbone's levels."""
        maps: dict[int, jax.Array] = {}
        running = None
        for level, tap in reversed(list(enumerate(taps, start=self.first))):
            lateral = self._convolve(f"lateral_{level}", tap, train=train)
            running = lateral if running is None else upsample(running, 2) + lateral
            maps[level] = self._convolve(f"output_{level}", running, train=train)
        return maps

    def _convolve(self, name: str, x: jax.Array, *, train: bool) -> jax.Array:
        # Outputs with a bias are float32.
        return getattr(self, name)(x, train=train).astype(self.dtype)

    def _normalize(self, level: int, x: jax.Array, *, train: bool) -> jax.Array:
        norm = getattr(self, f"norm_{level}", None)
        return x if norm is None else norm(x, "none", train=train)
