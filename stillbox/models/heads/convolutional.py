"""SSD's convolutional box predictor: every feature map has its own heads (fact sheet 3.3)."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.models.layers import Conv2d
from stillbox.models.parts import BuildOptions, Part
from stillbox.models.predictions import Predictions

_CODE_SIZE = 4


class ConvolutionalHead(Part):
    """One `MapHead` for each feature map, `map_0`, `map_1`, ...

    Args:
        config: layers before the heads, dropout, kernels.
        inputs: channels of each feature map.
        anchors_per_location: anchors of each feature map.
        slots: class logits of one anchor, the background's included.
        options: what all layers of the detector share.
    """

    def __init__(
        self,
        config: schema.ConvolutionalHead,
        inputs: tuple[int, ...],
        anchors_per_location: tuple[int, ...],
        slots: int,
        options: BuildOptions,
    ) -> None:
        for index, (channels, anchors) in enumerate(zip(inputs, anchors_per_location, strict=True)):
            setattr(self, f"map_{index}", MapHead(config, channels, anchors, slots, options))

    def __call__(
        self, maps: tuple[jax.Array, ...], *, train: bool, dropout_key: jax.Array | None
    ) -> Predictions:
        """Predicts for all anchors of all maps `[B, H, W, C]`, in the order of the anchors.

        `dropout_key` is needed in training where the head has dropout.
        """
        parts = []
        for index, features in enumerate(maps):
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, index)
            head = getattr(self, f"map_{index}")
            parts.append(head(features, train=train, dropout_key=key))
        boxes, logits = zip(*parts, strict=True)
        return Predictions(jnp.concatenate(boxes, axis=1), jnp.concatenate(logits, axis=1))


class MapHead(Part):
    """The heads of one feature map: `before_{n}`, then `box` and `class_`.

    Args:
        config: layers before the heads, dropout, kernels.
        inputs: channels of the feature map.
        anchors: at each of its locations.
        slots: class logits of one anchor, the background's included.
        options: what all layers of the detector share.
    """

    def __init__(
        self,
        config: schema.ConvolutionalHead,
        inputs: int,
        anchors: int,
        slots: int,
        options: BuildOptions,
    ) -> None:
        layers = options.layer_arguments()
        depth = max(min(inputs, config.max_depth), config.min_depth)
        # No depth, no layers: with both bounds at 0 the original ignores how many are asked for.
        self.layers_before = config.layers_before if depth > 0 else 0
        for index in range(self.layers_before):
            layer = Conv2d(inputs, depth, 1, 1, config.conv, **layers)
            setattr(self, f"before_{index}", layer)
            inputs = depth
        plain = replace(config.conv, batch_norm=None, activation="none")
        size = config.kernel_size
        self.box = Conv2d(inputs, anchors * _CODE_SIZE, size, 1, plain, **layers)
        self.class_ = Conv2d(inputs, anchors * slots, size, 1, plain, **layers)
        self.class_.bias[...] = jnp.full(anchors * slots, config.class_bias_init, jnp.float32)
        self.dropout = config.dropout
        self.keep = config.dropout_keep_probability
        self.slots = slots

    def __call__(
        self, x: jax.Array, *, train: bool, dropout_key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, H, W, C]` to `[B, HWA, 4]` and `[B, HWA, slots]`, both float32."""
        for index in range(self.layers_before):
            x = getattr(self, f"before_{index}")(x, train=train)
        # Dropout is in front of the class convolution alone: boxes are regressed from all of x.
        class_input = _dropout(x, self.keep, dropout_key) if train and self.dropout else x
        boxes = self.box(x, train=train)
        logits = self.class_(class_input, train=train)
        batch = x.shape[0]
        return (
            boxes.reshape(batch, -1, _CODE_SIZE),
            logits.reshape(batch, -1, self.slots),
        )


def _dropout(x: jax.Array, keep: float, key: jax.Array | None) -> jax.Array:
    """Sets a share of `1 - keep` to zero and scales the rest up.

    Raises:
        ValueError: there is no key to draw from.
    """
    if key is None:
        raise ValueError("a head with dropout needs a dropout_key in training")
    kept = jax.random.bernoulli(key, keep, x.shape)
    return jnp.where(kept, x / keep, jnp.zeros((), x.dtype)).astype(x.dtype)
