"""From proposals to crops of feature maps.

On CPUs samples are gathered; elsewhere maps are multiplied by matrices of weights. Measured on two
cores for a map of 40 x 40 x 1024 and 64 boxes of 14 x 14 samples, gathering takes 2 ms and its
gradient 69, the products 123 and 162, and 294 MB. The gradient of gathering adds to single cells,
which is slow on TPUs and has no fixed order on GPUs. A pyramid is gathered from one array of all
levels. It is multiplied level by level, so that the bands of one level at a time are in memory.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from stillbox.boxes.crops import (
    Samples,
    cell_samples,
    edge_samples,
    gathered,
    multiplied,
    pyramid_level,
)
from stillbox.boxes.geometry import extents_on_map, stride_of
from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.layers.lowering.calls import per_platform
from stillbox.models.layers.lowering.pooling import max_pool

Shape = tuple[int, int]


@implements(schema.CropAndResize)
def crop_and_resize(
    config: schema.CropAndResize,
    maps: Sequence[jax.Array],
    boxes: jax.Array,
    windows: jax.Array,
    input_size: Shape,
) -> jax.Array:
    """Returns pooled bilinear samples `[B, P, S, S, C]`; see `schema.RoiCrop`."""
    place = partial(edge_samples, size=config.size, outside=config.outside)
    levels = _levels(boxes, windows, len(maps))
    extents = _of_level(_extents(maps, windows, input_size), levels)
    crops = _crops(maps, levels, jax.vmap(place)(boxes, extents))
    images, count, *shape = crops.shape
    pooled = max_pool(
        crops.reshape(-1, *shape), config.pool_size, config.pool_stride, padding="valid"
    )
    return pooled.reshape(images, count, *pooled.shape[1:])


@implements(schema.RoiAlign)
def roi_align(
    config: schema.RoiAlign,
    maps: Sequence[jax.Array],
    boxes: jax.Array,
    windows: jax.Array,
    input_size: Shape,
) -> jax.Array:
    """Returns means of bilinear samples `[B, P, S, S, C]`; see `schema.RoiCrop`."""
    place = partial(cell_samples, size=config.size, samples=config.samples)
    levels = _levels(boxes, windows, len(maps))
    extents = _of_level(_extents(maps, windows, input_size), levels)
    in_cells = _of_level(_windows_in_cells(maps, windows, input_size), levels)
    return _crops(maps, levels, jax.vmap(place)(boxes, extents, in_cells))


def _levels(boxes: jax.Array, windows: jax.Array, count: int) -> jax.Array:
    """Returns the index of the level of each box, `[B, P]` int32."""
    return jax.vmap(partial(pyramid_level, levels=count))(boxes, windows)


def _of_level(sizes: jax.Array, levels: jax.Array) -> jax.Array:
    """Returns the sizes of each box's level, `[B, P, 2]` of `[B, L, 2]`."""
    return jnp.take_along_axis(sizes, levels[..., None], axis=1)


def _extents(maps: Sequence[jax.Array], windows: jax.Array, input_size: Shape) -> jax.Array:
    """Returns rows and columns of the maps that the windows fill, `[B, L, 2]`."""
    return jnp.stack(
        [extents_on_map(windows, _sides(features), input_size) for features in maps], axis=1
    )


def _windows_in_cells(
    maps: Sequence[jax.Array], windows: jax.Array, input_size: Shape
) -> jax.Array:
    """Returns heights and widths of the windows divided by the maps' strides, `[B, L, 2]`."""
    strides = [
        [stride_of(*sides) for sides in zip(_sides(features), input_size, strict=True)]
        for features in maps
    ]
    return windows[:, None] / jnp.asarray(strides, jnp.float32)


def _sides(features: jax.Array) -> Shape:
    """Returns height and width of `[B, H, W, C]`."""
    return features.shape[1], features.shape[2]


def _crops(maps: Sequence[jax.Array], levels: jax.Array, samples: Samples) -> jax.Array:
    """Computes the samples of a batch, `[B, P, S, S, C]`."""

    def batch_of(
        compute: Callable[[Sequence[jax.Array], jax.Array, Samples], jax.Array],
    ) -> Callable[..., jax.Array]:
        return jax.vmap(lambda levels, samples, *maps: compute(maps, levels, samples))

    gather = batch_of(gathered)
    return per_platform(
        levels, samples, *maps, cpu=gather, default=batch_of(multiplied), plain=gather
    )
