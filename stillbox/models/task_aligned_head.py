"""The task-aligned head: one tower serves classes and boxes (TOOD, arXiv:2108.07755).

As `TOODHead` in `mmdet/models/dense_heads/tood_head.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Float

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.detector import Predictions, joined_predictions
from stillbox.models.heads import SharedLayer, level_scales
from stillbox.models.layers import Conv2d
from stillbox.models.parts import BuildOptions, FeatureMap, Outputs, Part, common_channels
from stillbox.models.paths import Named

# Attention and offsets begin near their means: mmdet's `init_weights`.
_SMALL = schema.RandomNormal(stddev=0.001)
_ATTENTION_REDUCTION, _SIDE_REDUCTION = 8, 4
_EDGES = 4

Boxes = Float[jax.Array, "B H W 4"]


@implements(schema.TaskAlignedHead)
class TaskAlignedPredictor(Part):
    """`layer_{n}`, then `class_decomposition` with `class_`, and `box_decomposition` with `box`.

    All layers of the tower enter both decompositions, and two pairs of convolutions beside them:
    `probability_{n}` multiplies scores, `offset_{n}` says where each edge is read.

    Raises:
        UserError: feature maps differ in their channels, or have several anchors at a location.
    """

    def __init__(
        self,
        config: schema.TaskAlignedHead,
        inputs: tuple[int, ...],
        outputs: Outputs,
        options: BuildOptions,
    ) -> None:
        if set(outputs.anchors) != {1}:
            raise UserError(
                f"a task_aligned head has one anchor at a location, not {max(outputs.anchors)}",
                where="model.anchors",
                fix="one scale and one aspect ratio: scales_per_octave: 1, aspect_ratios: [1.0]",
            )
        text, fix = "a task_aligned head has one tower", "take a pyramid, such as fpn"
        channels = common_channels(inputs, text, fix)
        maps, depth = len(inputs), config.depth
        layers = {}
        for number in range(config.layers_before):
            layers[number] = SharedLayer(config, channels, depth, 3, options, maps=maps)
            channels = depth
        self.layers = Named("layer_{}", layers)
        whole, side = depth * config.layers_before, depth // _SIDE_REDUCTION
        self.class_decomposition = TaskDecomposition(config, maps, options)
        self.box_decomposition = TaskDecomposition(config, maps, options)
        plain, active = config.conv.without_norm(), config.conv.without_norm("relu")
        layer: Callable[..., Conv2d] = partial(Conv2d, stride=1, **options.layer_arguments())
        self.class_ = layer(depth, outputs.class_channels, 3, hyperparams=plain)
        self.box = layer(depth, _EDGES, 3, hyperparams=plain)
        self.probability_1 = layer(whole, side, 1, hyperparams=active)
        self.probability_2 = layer(side, 1, 3, hyperparams=plain)
        small = partial(replace, initializer=_SMALL)
        self.offset_1 = layer(whole, side, 1, hyperparams=small(active))
        self.offset_2 = layer(side, 2 * _EDGES, 3, hyperparams=small(plain))
        for convolution in (self.class_, self.probability_2):
            convolution.fill_bias(config.class_bias_init)
        self.scales = level_scales(maps)

    def __call__(
        self, maps: tuple[FeatureMap, ...], *, train: bool, dropout_key: jax.Array | None
    ) -> Predictions:
        """Predicts for all anchors of all maps `[B, H, W, C]`, in the order of the anchors."""
        parts = []
        for index, features in enumerate(maps):
            with jax.named_scope(f"map_{index}"):
                parts.append(self._predict(features, index, train=train))
        return joined_predictions(parts)

    def _predict(self, x: FeatureMap, index: int, *, train: bool) -> Predictions:
        layers = []
        for layer in self.layers.values():
            x = layer(x, index, train=train)
            layers.append(x)
        whole = jnp.concatenate(layers, axis=-1)
        logits = self.class_(self.class_decomposition(whole, index, train=train), train=train)
        other = self.probability_2(self.probability_1(whole, train=train), train=train)
        offsets = self.offset_2(self.offset_1(whole, train=train), train=train)
        raw = self.box(self.box_decomposition(whole, index, train=train), train=train)
        distances = _moved_distances(jnp.exp(raw) * self.scales[index][...], offsets)
        batch, channels = x.shape[0], logits.shape[-1]
        return Predictions(
            distances.reshape(batch, -1, _EDGES),
            mean_logits(logits, other).reshape(batch, -1, channels),
        )


class TaskDecomposition(Part):
    """Layers weighted for a task, `attention_1` and `attention_2`, and reduced to the depth.

    `reduction` is a 1x1 convolution of all layers of the tower, normalised and activated. The
    weights follow from the means of the map.
    """

    def __init__(self, config: schema.TaskAlignedHead, maps: int, options: BuildOptions) -> None:
        count, depth = config.layers_before, config.depth
        whole = count * depth
        hidden = depth // _ATTENTION_REDUCTION
        layer: Callable[..., Conv2d] = partial(Conv2d, size=1, stride=1)
        arguments, conv = options.layer_arguments(), replace(config.conv, initializer=_SMALL)
        self.attention_1 = layer(whole, hidden, hyperparams=conv.without_norm("relu"), **arguments)
        self.attention_2 = layer(hidden, count, hyperparams=conv.without_norm(), **arguments)
        self.reduction = SharedLayer(config, whole, depth, 1, options, maps=maps)
        self.depth = depth

    def __call__(self, layers: FeatureMap, index: int, *, train: bool) -> FeatureMap:
        """Maps all layers of feature map `index`, `[B, H, W, n depth]`, to `[B, H, W, depth]`."""
        means = jnp.mean(layers, axis=(1, 2), keepdims=True)
        attention = self.attention_2(self.attention_1(means, train=train), train=train)
        weights = jnp.repeat(jax.nn.sigmoid(attention), self.depth, axis=-1)
        return self.reduction(layers * weights.astype(layers.dtype), index, train=train)


def mean_logits(
    logits: Float[jax.Array, "B H W C"], others: Float[jax.Array, "B H W 1"]
) -> Float[jax.Array, "B H W C"]:
    """Returns the logits of the geometric means of two probabilities, given by their logits."""
    half = (jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(others)) / 2.0
    # log p - log(1 - p) with all digits, below the p with a complement of 0.
    half = jnp.minimum(half, -jnp.finfo(jnp.float32).tiny)
    return half - jnp.log(-jnp.expm1(half))


def _moved_distances(distances: Boxes, offsets: Float[jax.Array, "B H W 8"]) -> Boxes:
    """Replaces each edge by the edge of the box at another place of the map, if a box remains.

    Args:
        distances: of the edges from the location, in strides.
        offsets: row and column of the other place for each edge, relative to the location.

    Returns:
        The distances of the new edges.
    """
    rows, columns = (jnp.arange(side, dtype=jnp.float32) for side in distances.shape[1:3])
    grid = jnp.stack(jnp.meshgrid(rows, columns, indexing="ij"), axis=-1)
    boxes = jnp.concatenate([grid - distances[..., :2], grid + distances[..., 2:]], axis=-1)
    places = grid[:, :, None] + offsets.reshape(*offsets.shape[:3], _EDGES, 2)
    moved = resampled(boxes, places)
    inverted = (moved[..., :2] > moved[..., 2:]).any(axis=-1, keepdims=True)
    boxes = jnp.where(inverted, boxes, moved)
    return jnp.concatenate([grid - boxes[..., :2], boxes[..., 2:] - grid], axis=-1)


def resampled(
    values: Float[jax.Array, "B H W K"], places: Float[jax.Array, "B H W K 2"]
) -> Float[jax.Array, "B H W K"]:
    """Interpolates each channel bilinearly at places of its own, with zeros outside the map.

    Args:
        values: the map.
        places: row and column, in pixels of the map.
    """
    batch, height, width, channels = values.shape
    flat = values.reshape(batch, -1, channels)
    low = jnp.floor(places)
    share = places - low
    # Far away is as good as just outside, and fits an integer.
    corner = jnp.clip(low, -2.0, max(height, width) + 1.0).astype(jnp.int32)
    total = jnp.zeros_like(values)
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = corner[..., 0] + down, corner[..., 1] + right
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = jnp.where(inside, row * width + column, 0).reshape(batch, -1, channels)
        neighbours = jnp.take_along_axis(flat, index, axis=1, mode="clip").reshape(values.shape)
        weight = _weight(share[..., 0], down) * _weight(share[..., 1], right)
        total = total + jnp.where(inside, weight * neighbours, 0.0)
    return total


def _weight(share: jax.Array, next_: int) -> jax.Array:
    return share if next_ else 1.0 - share
