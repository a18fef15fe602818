"""SSD's convolutional box predictor: separate convolutions for each feature map."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers import Conv2d, DepthwiseConv2d
from stillbox.models.layers.stochastic import dropout, fold_key
from stillbox.models.parts import BuildOptions, Outputs, Part
from stillbox.models.predictions import Predictions
from stillbox.models.rematerialization import rematerialized


@implements(schema.ConvolutionalHead)
class ConvolutionalPredictor(Part):
    """One `MapHead` for each feature map, `map_0`, `map_1`, ..."""

    def __init__(
        self,
        config: schema.ConvolutionalHead,
        inputs: tuple[int, ...],
        outputs: Outputs,
        options: BuildOptions,
    ) -> None:
        for index, (channels, anchors) in enumerate(zip(inputs, outputs.anchors, strict=True)):
            setattr(self, f"map_{index}", MapHead(config, channels, anchors, outputs, options))

    def __call__(
        self, maps: tuple[jax.Array, ...], *, train: bool, dropout_key: jax.Array | None
    ) -> Predictions:
        """Predicts for all anchors of all maps `[B, H, W, C]`, in the order of the anchors."""
        parts = []
        for index, features in enumerate(maps):
            head = getattr(self, f"map_{index}")
            key = fold_key(dropout_key, index)
            parts.append(head(features, train=train, dropout_key=key))
        boxes, logits = zip(*parts, strict=True)
        return Predictions(jnp.concatenate(boxes, axis=1), jnp.concatenate(logits, axis=1))


class MapHead(Part):
    """The head of one feature map: `before_{n}`, then `box` and `class_`.

    Depthwise heads have `box_depthwise` and `class_depthwise`, normalised and activated, before 1x1
    convolutions. `anchors` is the number at each location of the map.
    """

    def __init__(
        self,
        config: schema.ConvolutionalHead,
        inputs: int,
        anchors: int,
        outputs: Outputs,
        options: BuildOptions,
    ) -> None:
        layers = options.layer_arguments()
        depth = max(min(inputs, config.max_depth), config.min_depth)
        # With both bounds at 0 the original ignores `layers_before`.
        self.layers_before = config.layers_before if depth > 0 else 0
        for index in range(self.layers_before):
            layer = Conv2d(inputs, depth, 1, 1, config.conv, **layers)
            setattr(self, f"before_{index}", layer)
            inputs = depth
        plain = replace(config.conv, batch_norm=None, activation="none")
        size = config.kernel_size
        self.depthwise = config.depthwise
        if config.depthwise:
            self.box_depthwise = DepthwiseConv2d(inputs, size, 1, config.conv, **layers)
            self.class_depthwise = DepthwiseConv2d(inputs, size, 1, config.conv, **layers)
            size = 1
        self.box = Conv2d(inputs, anchors * outputs.codes, size, 1, plain, **layers)
        self.class_ = Conv2d(inputs, anchors * outputs.slots, size, 1, plain, **layers)
        self.class_.bias[...] = jnp.full(
            anchors * outputs.slots, config.class_bias_init, jnp.float32
        )
        self.keep = config.dropout_keep_probability if config.dropout else None
        self.slots, self.codes = outputs.slots, outputs.codes

    @rematerialized
    def __call__(
        self, x: jax.Array, *, train: bool, dropout_key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, H, W, C]` to `[B, HWA, codes]` and `[B, HWA, slots]`, both float32."""
        for index in range(self.layers_before):
            x = getattr(self, f"before_{index}")(x, train=train)
        # Dropout precedes the class convolution only.
        box_input = class_input = x
        if train and self.keep is not None:
            class_input = dropout(x, self.keep, dropout_key)
        if self.depthwise:
            box_input = self.box_depthwise(box_input, train=train)
            class_input = self.class_depthwise(class_input, train=train)
        boxes = self.box(box_input, train=train)
        logits = self.class_(class_input, train=train)
        batch = x.shape[0]
        return boxes.reshape(batch, -1, self.codes), logits.reshape(batch, -1, self.slots)
