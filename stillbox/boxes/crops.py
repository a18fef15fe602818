"""Crops of feature maps: a grid of samples for each box.

There are two computations of the same numbers. `gathered` reads the cells that a sample is made of;
`multiplied` writes the weights of all rows and columns into matrices and multiplies whole maps by
them. Either has a gradient with respect to the maps.
"""

import itertools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from stillbox.boxes.samples import AxisSamples, Outside, Samples, cell_samples, edge_samples

Computation = Callable[[Sequence[Array], Array, Samples], Array]
"""Called with maps `[H, W, C]` of several levels, the index `[P]` of each box's level and the
samples on it; returns `[P, S, S, C]` of the maps' type."""


def gathered(maps: Sequence[Array], levels: Array, samples: Samples) -> Array:
    """Computes samples, in float32, from the cells that they are made of.

    The maps are copied into one array, so that the number of levels costs nothing else.
    """
    channels, dtype = maps[0].shape[-1], maps[0].dtype
    # Float32 also in the gradient of a cell, to which many samples add.
    cells = jnp.concatenate([features.reshape(-1, channels) for features in maps])
    cells = cells.astype(jnp.float32)
    row_starts = _starts_of_rows(maps, levels, samples.rows.indices)
    indices = row_starts, samples.columns.indices
    total = jnp.zeros((), jnp.float32)
    for row, column in itertools.product(*(range(array.shape[-1]) for array in indices)):
        index = _outer(jnp.add, row_starts[..., row], samples.columns.indices[..., column])
        weight = _outer(
            jnp.multiply, samples.rows.weights[..., row], samples.columns.weights[..., column]
        )
        total += cells.at[index].get(mode="promise_in_bounds") * weight[..., None]
    return total.astype(dtype)


def _starts_of_rows(maps: Sequence[Array], levels: Array, rows: Array) -> Array:
    """Returns the indices of the first cells of rows `[P, S, K]` in all cells of all maps."""
    heights, widths = np.array([features.shape[:2] for features in maps], np.int32).T
    starts = np.cumsum(heights * widths, dtype=np.int32) - heights * widths
    start, width = jnp.asarray(starts)[levels], jnp.asarray(widths)[levels]
    return start[:, None, None] + rows * width[:, None, None]


def _outer(function: Callable[[Array, Array], Array], rows: Array, columns: Array) -> Array:
    """Applies a function to all pairs: `[P, S]` and `[P, S]` to `[P, S, S]`."""
    return function(rows[:, :, None], columns[:, None, :])


def multiplied(maps: Sequence[Array], levels: Array, samples: Samples) -> Array:
    """Computes samples as two products of matrices for each map, in the maps' type.

    Boxes of other levels have weights of 0: all boxes are work on every level.
    """
    total: Array | None = None
    for level, features in enumerate(maps):
        rows, columns = (
            _matrix(one, side) for one, side in zip(samples, features.shape, strict=False)
        )
        if len(maps) > 1:
            rows = jnp.where((levels == level)[:, None, None], rows, 0)
        crops = _product(features, rows, columns)
        total = crops if total is None else total + crops
    assert total is not None  # there is a map
    return total


def _matrix(samples: AxisSamples, side: int) -> Array:
    """Returns the weights `[P, S, side]` of all rows, or columns, of a map."""
    hits = samples.indices[..., None] == jnp.arange(side)
    return jnp.sum(jnp.where(hits, samples.weights[..., None], 0), axis=-2)


def _product(features: Array, rows: Array, columns: Array) -> Array:
    """Multiplies `[H, W, C]` by `[P, S, H]` and `[P, S, W]`."""
    rows, columns = rows.astype(features.dtype), columns.astype(features.dtype)
    # Accelerators would round float32 to fewer bits.
    highest = lax.Precision.HIGHEST
    bands = jnp.einsum("psh,hwc->pswc", rows, features, precision=highest)
    return jnp.einsum("ptw,pswc->pstc", columns, bands, precision=highest)


def crop_and_resize(
    features: ArrayLike,
    boxes: ArrayLike,
    *,
    size: int,
    extent: ArrayLike,
    outside: Outside,
    compute: Computation = gathered,
) -> Array:
    """Returns bilinear samples of one map, evenly spaced from edge to edge of each box.

    As the original's `crop_and_resize`; see `edge_samples`.

    Args:
        features: `[H, W, C]`.
        boxes: `[P, 4]`, normalised to the part of the map that counts.
        size: S, points in a row and in a column of a box.
        extent: `[2]`, rows and columns of that part.
        outside: value of a point outside of it.
        compute: `gathered` or `multiplied`.

    Returns:
        `[P, S, S, C]` of the features' type.
    """
    return _crops(features, edge_samples(boxes, extent, size=size, outside=outside), compute)


def roi_align(
    features: ArrayLike,
    boxes: ArrayLike,
    *,
    size: int,
    samples: int,
    extent: ArrayLike,
    window: ArrayLike,
    compute: Computation = gathered,
) -> Array:
    """Returns the means of bilinear samples in the cells of each box (arXiv:1703.06870).

    As torchvision's `roi_align(aligned=True)`; see `cell_samples`.

    Args:
        features: `[H, W, C]`.
        boxes: `[P, 4]`, normalised to the window.
        size: S, rows and columns of cells.
        samples: points in a row and in a column of a cell.
        extent: `[2]`, rows and columns of the map that count.
        window: `[2]`, height and width of the window divided by the map's stride.
        compute: `gathered` or `multiplied`.

    Returns:
        `[P, S, S, C]` of the features' type.
    """
    found = cell_samples(boxes, extent, window, size=size, samples=samples)
    return _crops(features, found, compute)


def _crops(features: ArrayLike, samples: Samples, compute: Computation) -> Array:
    levels = jnp.zeros(samples.rows.indices.shape[0], jnp.int32)
    return compute([jnp.asarray(features)], levels, samples)
