"""Fully connected layers as a box head, as of a feature pyramid (arXiv:1612.03144)."""

from dataclasses import replace

import jax

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Dense, NormLayer
from stillbox.models.layers.penalties import norm_regularizer
from stillbox.models.parts import BuildOptions, Part
from stillbox.models.rematerialization import rematerialized


@implements(schema.FullyConnectedHead)
class FullyConnectedBoxHead(Part):
    """`dense_{n}` with bias and activation, then `norm_{n}`, n from 1; the last has no norm.

    Keras builds these layers one after the other, so that the norm follows the activation.
    """

    def __init__(
        self, config: schema.FullyConnectedHead, channels: int, size: int, options: BuildOptions
    ) -> None:
        conv = replace(config.conv, batch_norm=None)
        norm, penalty = config.conv.batch_norm, norm_regularizer(config.conv)
        inputs, last = channels * size**2, len(config.widths)
        for number, width in enumerate(config.widths, start=1):
            layer = Dense(inputs, width, conv, **options.layer_arguments())
            setattr(self, f"dense_{number}", layer)
            if norm is not None and number < last:
                frozen = options.freeze_norm
                layer = NormLayer(width, norm, frozen=frozen, regularizer=penalty)
                setattr(self, f"norm_{number}", layer)
            inputs = width
        self.layers, self.channels = last, inputs

    @rematerialized
    def __call__(
        self, crops: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Maps crops `[N, S, S, C]` to `[N, D]`, D being the last of the widths."""
        x = crops.reshape(crops.shape[0], -1)
        for number in range(1, self.layers + 1):
            x = getattr(self, f"dense_{number}")(x, train=train)
            norm = getattr(self, f"norm_{number}", None)
            if norm is not None:
                x = norm(x[:, None, None], "none", train=train)[:, 0, 0]
        return x
