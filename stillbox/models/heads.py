"""Heads of one-stage detectors: box predictors of each feature map, or shared by all.

SSD has separate convolutions for each feature map. RetinaNet and EfficientDet share the kernels
between all feature maps (arXiv:1708.02002), ATSS (arXiv:1912.02424) and GFL (arXiv:2006.04388) all
but a factor.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.detector import (
    AnyPredictions,
    Predictions,
    RatedPredictions,
    joined_predictions,
)
from stillbox.models.layers import (
    Conv2d,
    DepthwiseConv2d,
    SeparableConv2d,
    build_norm,
)
from stillbox.models.layers.conv import ConvLayer
from stillbox.models.layers.hyperparams import GLOROT_UNIFORM
from stillbox.models.layers.norm import GroupNormLayer
from stillbox.models.layers.stochastic import dropout, fold_key
from stillbox.models.parts import BuildOptions, FeatureMap, Outputs, Part
from stillbox.models.paths import Named
from stillbox.models.rematerialization import rematerialized


class MapHead(Part):
    """The head of one feature map: `before_{n}`, then `box` and `class_`.

    Depthwise heads have `box_depthwise` and `class_depthwise`, normalised and activated, before 1x1
    convolutions.
    """

    def __init__(
        self,
        config: schema.ConvolutionalHead,
        channels: tuple[int],
        outputs: Outputs,
        options: BuildOptions,
    ) -> None:
        (inputs,), (anchors,), layers = channels, outputs.anchors, options.layer_arguments()
        depth = max(min(inputs, config.max_depth), config.min_depth)
        # With both bounds at 0 the original ignores `layers_before`.
        before = {}
        for index in range(config.layers_before if depth > 0 else 0):
            before[index] = Conv2d(inputs, depth, 1, 1, config.conv, **layers)
            inputs = depth
        self.before = Named("before_{}", before)
        plain = config.conv.without_norm()
        size = config.kernel_size
        depthwise = partial(DepthwiseConv2d, inputs, size, 1, config.conv, **layers)
        self.box_depthwise = depthwise() if config.depthwise else None
        self.class_depthwise = depthwise() if config.depthwise else None
        size = 1 if config.depthwise else size
        self.box = Conv2d(inputs, anchors * outputs.code_size, size, 1, plain, **layers)
        self.class_ = Conv2d(inputs, anchors * outputs.class_channels, size, 1, plain, **layers)
        self.class_.fill_bias(config.class_bias_init)
        self.keep = config.dropout_keep_probability if config.dropout else None
        self.class_channels, self.code_size = outputs.class_channels, outputs.code_size

    @rematerialized
    def __call__(
        self, maps: tuple[FeatureMap], *, train: bool, dropout_key: jax.Array | None
    ) -> Predictions:
        """Maps `[B, H, W, C]` to deltas `[B, HWA, S]` and logits `[B, HWA, C]`, both float32."""
        (x,) = maps
        for layer in self.before.values():
            x = layer(x, train=train)
        # Dropout precedes the class convolution only.
        box_input = class_input = x
        if train and self.keep is not None:
            class_input = dropout(x, self.keep, dropout_key)
        if self.box_depthwise is not None and self.class_depthwise is not None:
            box_input = self.box_depthwise(box_input, train=train)
            class_input = self.class_depthwise(class_input, train=train)
        boxes = self.box(box_input, train=train)
        logits = self.class_(class_input, train=train)
        batch = x.shape[0]
        return Predictions(
            boxes.reshape(batch, -1, self.code_size), logits.reshape(batch, -1, self.class_channels)
        )


@implements(schema.WeightSharedHead)
@implements(schema.GflHead)
@implements(schema.AtssHead)
class WeightSharedPredictor(Part):
    """`box_tower` and `class_tower`, or one `tower`, then the convolutions `box` and `class_`.

    If feature maps differ in their channels, `projection_{k}` converts map k to the channels that
    most of them have. Heads of GFL and ATSS multiply the codes of boxes by `scale_{k}` on map k.
    The latter have the convolution `centerness` after the tower of the boxes.

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
        anchors, maps = common_anchors(outputs), len(inputs)
        common = Counter(inputs).most_common(1)[0][0]
        projection = partial(
            SharedLayer, config, channels=common, size=1, options=options, maps=1, activation="none"
        )
        projected = inputs if len(set(inputs)) > 1 else ()
        projections = {index: projection(channels) for index, channels in enumerate(projected)}
        self.projections = Named("projection_{}", projections)
        tower = partial(Tower, config, common, maps, options)
        self.tower = tower() if config.share_tower else None
        self.box_tower = None if config.share_tower else tower()
        self.class_tower = None if config.share_tower else tower()
        last = partial(
            SeparableConv2d if config.depthwise else Conv2d,
            config.depth if config.layers_before else common,
            size=config.predictor_kernel_size or config.kernel_size,
            stride=1,
            hyperparams=_predictor_hyperparams(config),
            **options.layer_arguments() | {"num_uses": maps},
        )
        self.box = last(channels=anchors * outputs.code_size)
        self.class_ = last(channels=anchors * outputs.class_channels)
        self.class_.fill_bias(config.class_bias_init)
        self.scales = level_scales(maps) if isinstance(config, schema.GflHead) else None
        self.centerness = last(channels=anchors) if isinstance(config, schema.AtssHead) else None
        self.keep = config.dropout_keep_probability if config.dropout else None
        self.class_channels, self.code_size = outputs.class_channels, outputs.code_size

    def __call__(
        self, maps: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None
    ) -> AnyPredictions:
        """Predicts for all anchors of all maps `[B, H, W, C]`, in the order of the anchors."""
        parts = []
        for index, features in enumerate(maps):
            with jax.named_scope(f"map_{index}"):
                part = self._predict(features, index, train=train, dropout_key=dropout_key)
            parts.append(part)
        return joined_predictions(parts)

    def _predict(
        self, x: FeatureMap, index: int, *, train: bool, dropout_key: jax.Array | None
    ) -> AnyPredictions:
        """Predicts for the anchors of feature map `index`."""
        if self.projections:
            x = self.projections[index](x, 0, train=train)
        box_input, class_input = self._apply_towers(x, index, train=train)
        if train and self.keep is not None:
            class_input = dropout(class_input, self.keep, fold_key(dropout_key, index))
        factor = None if self.scales is None else self.scales[index][...]
        boxes = self.box(box_input, train=train, use=index, factor=factor)
        logits = self.class_(class_input, train=train, use=index)
        batch = boxes.shape[0]
        boxes = boxes.reshape(batch, -1, self.code_size)
        logits = logits.reshape(batch, -1, self.class_channels)
        if self.centerness is None:
            return Predictions(boxes, logits)
        quality = self.centerness(box_input, train=train, use=index)
        return RatedPredictions(boxes, logits, quality.reshape(batch, -1))

    def _apply_towers(
        self, x: FeatureMap, index: int, *, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the inputs of the box and the class convolution for feature map `index`."""
        if self.tower is not None:
            shared = self.tower(x, index, train=train)
            return shared, shared
        assert self.box_tower is not None and self.class_tower is not None
        return self.box_tower(x, index, train=train), self.class_tower(x, index, train=train)


def level_scales(maps: int) -> Named[int, nnx.Param]:
    """Returns the factors `scale_{k}` of feature maps, which begin as 1."""
    ones = {index: nnx.Param(jnp.ones((), jnp.float32)) for index in range(maps)}
    return Named("scale_{}", ones)


@implements(schema.ConvolutionalHead)
@implements(schema.PerMapHead)
class PerMapPredictor(Part):
    """A head for each feature map, `map_0`, ...: a `MapHead`, or for `per_map` a shared head."""

    def __init__(
        self,
        config: schema.ConvolutionalHead | schema.PerMapHead,
        inputs: tuple[int, ...],
        outputs: Outputs,
        options: BuildOptions,
    ) -> None:
        head: Callable[..., Part] = MapHead
        if isinstance(config, schema.PerMapHead):
            head = WeightSharedPredictor
        heads = {}
        for index, (channels, anchors) in enumerate(zip(inputs, outputs.anchors, strict=True)):
            map_outputs = replace(outputs, anchors=(anchors,))
            heads[index] = head(config, (channels,), map_outputs, options)
        self.heads = Named("map_{}", heads)

    def __call__(
        self, maps: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None
    ) -> AnyPredictions:
        """Predicts for all anchors of all maps `[B, H, W, C]`, in the order of the anchors."""
        parts = []
        for index, features in enumerate(maps):
            key = fold_key(dropout_key, index)
            parts.append(self.heads[index]((features,), train=train, dropout_key=key))
        return joined_predictions(parts)


def _predictor_hyperparams(config: schema.WeightSharedHead) -> schema.ConvHyperparams:
    """Returns the hyperparameters of the box and the class convolution."""
    conv = config.conv
    if config.predictor_defaults and config.depthwise:
        conv = replace(conv, regularizer=None, initializer=GLOROT_UNIFORM)
    initializer = config.predictor_initializer or conv.initializer
    return replace(conv.without_norm(), initializer=initializer)


class Tower(Part):
    """Convolutions `layer_0`, `layer_1`, ... between `maps` feature maps and a head."""

    def __init__(
        self, config: schema.WeightSharedHead, inputs: int, maps: int, options: BuildOptions
    ) -> None:
        depth, size, layers = config.depth, config.kernel_size, {}
        for index in range(config.layers_before):
            layers[index] = SharedLayer(config, inputs, depth, size, options, maps=maps)
            inputs = depth
        self.layers = Named("layer_{}", layers)

    @rematerialized
    def __call__(self, x: FeatureMap, index: int, *, train: bool) -> FeatureMap:
        """Maps feature map `index`, `[B, H, W, C]`, to `[B, H, W, depth]`."""
        for layer in self.layers.values():
            x = layer(x, index, train=train)
        return x


class SharedLayer(Part):
    """One kernel `conv` for all maps, and a batch norm `norm_{k}` for each.

    The statistics of the maps differ; group norm, which has none, is one `norm` for all maps.
    Without normalisation the kernel has a bias.

    Args:
        config: kind of the convolution and hyperparameters.
        inputs: channels of the input.
        channels: channels of the output.
        size: side of the kernel.
        options: as for all layers.
        maps: number of feature maps.
        activation: overrides the configured one.
    """

    def __init__(
        self,
        config: schema.WeightSharedHead | schema.TaskAlignedHead,
        inputs: int,
        channels: int,
        size: int,
        options: BuildOptions,
        *,
        maps: int,
        activation: schema.Activation | None = None,
    ) -> None:
        normalizes = config.conv.normalizes
        self.activation = activation or config.conv.activation
        inner: schema.Activation = "none" if normalizes else self.activation
        plain = config.conv.without_norm(inner)
        convolution: Callable[..., ConvLayer] = Conv2d
        if config.depthwise and size > 1:
            convolution = partial(SeparableConv2d, pointwise_defaults=config.pointwise_defaults)
        bias = not normalizes or config.conv.force_bias
        layers = options.layer_arguments() | {"bias": bias, "num_uses": maps}
        self.conv = convolution(inputs, channels, size, 1, plain, **layers)
        self.shares_norm = config.conv.group_norm is not None
        norm = partial(build_norm, channels, config.conv, frozen=options.freeze_norm)
        norms = {index: norm() for index in range(1 if self.shares_norm else maps)}
        self.norms = Named("norm" if self.shares_norm else "norm_{}", norms)
        self.dtype = jnp.dtype(options.dtype)

    def __call__(self, x: FeatureMap, index: int, *, train: bool) -> FeatureMap:
        """Maps feature map `index`, `[B, H, W, C]`, to `[B, H, W, D]`."""
        norm = self.norms[0 if self.shares_norm else index]
        if self.conv.roundings is not None:
            # A rule refuses rounding with group norm, which is no part of a kernel.
            assert not isinstance(norm, GroupNormLayer)
            y = self.conv.apply_rounded(x, norm, self.activation, train=train, use=index)
            return y.astype(self.dtype)
        y = self.conv(x, train=train).astype(self.dtype)
        return y if norm is None else norm(y, self.activation, train=train)


def common_anchors(outputs: Outputs) -> int:
    """Returns the number of anchors at every location of every map.

    Raises:
        UserError: maps differ in it.
    """
    if len(set(outputs.anchors)) > 1:
        raise UserError(
            f"a weight_shared head has one kernel for all feature maps, but they have "
            f"{', '.join(map(str, outputs.anchors))} anchors at a location",
            where="model.anchors",
            fix="give every map as many, such as by reduce_boxes_in_lowest_layer: false",
        )
    return outputs.anchors[0]
