"""The predictor whose kernels all feature maps share (arXiv:1708.02002; fact sheet 3.3)."""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.heads.dropout import dropout
from stillbox.models.layers import BatchNorm, Conv2d, SeparableConv2d
from stillbox.models.layers.penalties import norm_regularizer
from stillbox.models.parts import BuildOptions, Outputs, Part
from stillbox.models.predictions import Predictions


@implements(schema.WeightSharedHead)
class WeightSharedPredictor(Part):
    """`box_tower` and `class_tower`, or one `tower`, then the heads `box` and `class_`.

    `projection_{k}` brings feature map k to the channels that most maps have; where all have the
    same there is none.

    Args:
        config: towers, dropout, kernels.
        inputs: channels of each feature map.
        outputs: anchors, slots and codes; every map has the same number of anchors.
        options: what all layers of the detector share.

    Raises:
        UserError: feature maps differ in their anchors.
    """

    def __init__(
        self,
        config: schema.WeightSharedHead,
        inputs: tuple[int, ...],
        outputs: Outputs,
        options: BuildOptions,
    ) -> None:
        anchors = _common_anchors(outputs)
        common = Counter(inputs).most_common(1)[0][0]
        if len(set(inputs)) > 1:
            for index, channels in enumerate(inputs):
                layer = SharedLayer(config, channels, common, 1, options, maps=1, activation="none")
                setattr(self, f"projection_{index}", layer)
        if config.share_tower:
            self.tower = Tower(config, common, len(inputs), options)
        else:
            self.box_tower = Tower(config, common, len(inputs), options)
            self.class_tower = Tower(config, common, len(inputs), options)
        depth = config.depth if config.layers_before else common
        initializer = config.predictor_initializer or config.conv.initializer
        plain = replace(config.conv, batch_norm=None, activation="none", initializer=initializer)
        convolution = SeparableConv2d if config.depthwise else Conv2d
        size, layers = config.kernel_size, options.layer_arguments()
        self.box = convolution(depth, anchors * outputs.codes, size, 1, plain, **layers)
        self.class_ = convolution(depth, anchors * outputs.slots, size, 1, plain, **layers)
        self.class_.bias[...] = jnp.full(
            anchors * outputs.slots, config.class_bias_init, jnp.float32
        )
        self.keep = config.dropout_keep_probability if config.dropout else None
        self.slots, self.codes = outputs.slots, outputs.codes

    def __call__(
        self, maps: tuple[jax.Array, ...], *, train: bool, dropout_key: jax.Array | None
    ) -> Predictions:
        """Predicts for all anchors of all maps `[B, H, W, C]`, in the order of the anchors.

        `dropout_key` is needed in training where the head has dropout.
        """
        boxes, logits = [], []
        for index, features in enumerate(maps):
            x = features
            if hasattr(self, f"projection_{index}"):
                x = getattr(self, f"projection_{index}")(x, 0, train=train)
            key = None if dropout_key is None else jax.random.fold_in(dropout_key, index)
            box_input, class_input = self._climb(x, index, train=train)
            if train and self.keep is not None:
                class_input = dropout(class_input, self.keep, key)
            batch = x.shape[0]
            boxes.append(self.box(box_input, train=train).reshape(batch, -1, self.codes))
            logits.append(self.class_(class_input, train=train).reshape(batch, -1, self.slots))
        return Predictions(jnp.concatenate(boxes, axis=1), jnp.concatenate(logits, axis=1))

    def _climb(self, x: jax.Array, index: int, *, train: bool) -> tuple[jax.Array, jax.Array]:
        """Returns what the box head and what the class head sees of feature map `index`."""
        if hasattr(self, "tower"):
            shared = self.tower(x, index, train=train)
            return shared, shared
        return self.box_tower(x, index, train=train), self.class_tower(x, index, train=train)


class Tower(Part):
    """Convolutions `layer_0`, `layer_1`, ... between the feature maps and a head.

    Args:
        config: depth, number and kind of the layers.
        inputs: channels of the feature maps.
        maps: how many of them there are.
        options: what all layers of the detector share.
    """

    def __init__(
        self, config: schema.WeightSharedHead, inputs: int, maps: int, options: BuildOptions
    ) -> None:
        for index in range(config.layers_before):
            layer = SharedLayer(
                config, inputs, config.depth, config.kernel_size, options, maps=maps
            )
            setattr(self, f"layer_{index}", layer)
            inputs = config.depth
        self.layers = tuple(f"layer_{index}" for index in range(config.layers_before))

    def __call__(self, x: jax.Array, index: int, *, train: bool) -> jax.Array:
        """Maps feature map `index`, `[B, H, W, C]`, to `[B, H, W, depth]`."""
        for name in self.layers:
            x = getattr(self, name)(x, index, train=train)
        return x


class SharedLayer(Part):
    """One kernel `conv` for all maps, and a batch norm `norm_{k}` for each of them.

    The statistics of the maps differ, so one batch norm would suit none of them. Without batch
    norm the kernel has a bias.

    Args:
        config: kind of the convolution and hyperparameters.
        inputs: channels of the input.
        channels: channels of the output.
        size: side of the kernel.
        options: what all layers of the detector share.
        maps: how many feature maps come through.
        activation: instead of the configured one.
    """

    def __init__(
        self,
        config: schema.WeightSharedHead,
        inputs: int,
        channels: int,
        size: int,
        options: BuildOptions,
        *,
        maps: int,
        activation: schema.Activation | None = None,
    ) -> None:
        norm = config.conv.batch_norm
        self.activation = activation or config.conv.activation
        inner: schema.Activation = "none" if norm else self.activation
        plain = replace(config.conv, batch_norm=None, activation=inner)
        convolution = SeparableConv2d if config.depthwise and size > 1 else Conv2d
        bias = norm is None or config.conv.force_bias
        self.conv = convolution(
            inputs, channels, size, 1, plain, bias=bias, **options.layer_arguments()
        )
        if norm is not None:
            for index in range(maps):
                layer = BatchNorm(
                    channels,
                    norm,
                    frozen=options.freeze_norm,
                    regularizer=norm_regularizer(config.conv),
                )
                setattr(self, f"norm_{index}", layer)
        self.dtype = jnp.dtype(options.dtype)

    def __call__(self, x: jax.Array, index: int, *, train: bool) -> jax.Array:
        """Maps feature map `index`, `[B, H, W, C]`, to `[B, H, W, D]`."""
        y = self.conv(x, train=train).astype(self.dtype)
        norm: nnx.Module | None = getattr(self, f"norm_{index}", None)
        return y if norm is None else norm(y, self.activation, train=train)


def _common_anchors(outputs: Outputs) -> int:
    """Returns the number of anchors that stand at every location of every map."""
    if len(set(outputs.anchors)) > 1:
        raise UserError(
            f"a weight_shared head has one kernel for all feature maps, but they have "
            f"{', '.join(map(str, outputs.anchors))} anchors at a location",
            where="model.anchors",
            fix="give every map as many, such as by reduce_boxes_in_lowest_layer: false",
        )
    return outputs.anchors[0]
