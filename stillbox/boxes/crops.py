"""Crops of feature maps: a grid of samples for each box.

The sample points are as in the original's `crop_and_resize`
(`object_detection/utils/spatial_transform_ops.py`) and in RoIAlign (arXiv:1703.06870).
Coordinates on a map count the centres of its cells: 0 is the first row or column.

Two computations give the same numbers. `gathered` reads the cells of every sample; `multiplied`
writes the weights of all rows and columns into matrices and multiplies whole maps by them. Both
have a gradient with respect to the maps.

`product` and `quotient` round after every operation, as the originals' arithmetic does. Compilers
merge operations into ones that round once or differently, and here that decides whether the last
row of a crop lies inside its map. Exact on CPUs; a GPU's or TPU's own division may differ.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Float, Float32, Int32, Real

from stillbox.boxes.geometry import area

# Beyond what coordinates reach, and its double fits into int32.
_FAR = 2.0**29


def quotient(
    dividend: Real[ArrayLike, "*#B"], divisor: Real[ArrayLike, "*#B"]
) -> Float32[Array, "*B"]:
    """Divides; where the divisor is a constant, XLA would multiply by its rounded reciprocal."""
    dividend = jnp.asarray(dividend, jnp.float32)
    # No constant any more: it depends on the dividend.
    return dividend / jnp.where(jnp.isnan(dividend), 1, jnp.asarray(divisor, jnp.float32))


def scaled_down(
    values: Real[ArrayLike, "*#B"], divisor: Real[ArrayLike, "*#B"]
) -> Float32[Array, "*B"]:
    """Multiplies by the rounded reciprocal, as the original brings boxes into units of an image.

    A division would differ in the last place.
    """
    return product(values, 1 / jnp.asarray(divisor, jnp.float32))


def product(left: Real[ArrayLike, "*#B"], right: Real[ArrayLike, "*#B"]) -> Float32[Array, "*B"]:
    """Multiplies and limits the product to +-2^29; it can be added to without a merger.

    LLVM would merge product and sum also through `optimization_barrier` and `reduce_precision`,
    which XLA removes before.
    """
    return jnp.clip(jnp.asarray(left, jnp.float32) * right, -_FAR, _FAR)


Outside = Literal["zero", "fade"]


class AxisSamples(NamedTuple):
    """Samples along one axis of a map: weighted sums of K of its rows, or columns."""

    indices: Int32[Array, "P S K"]
    """Rows or columns, all of them inside the map."""
    weights: Float32[Array, "P S K"]
    """0 for what is outside."""


class Samples(NamedTuple):
    """A grid of samples for each box; a cell weighs its row's weight times its column's."""

    rows: AxisSamples
    columns: AxisSamples


PerBox = Real[ArrayLike, "2"] | Real[ArrayLike, "P 2"]
"""Height and width for all P boxes, or for each."""


def edge_samples(
    boxes: Real[ArrayLike, "P 4"], extent: PerBox, *, size: int, outside: Outside
) -> Samples:
    """Returns evenly spaced bilinear samples from edge to edge of boxes; one is in the centre.

    A coordinate y is the point `y * (H - 1)` of H rows. The last point of a box that ends at 1 may
    lie beyond the last row by rounding, and is outside then, as in the original.

    Args:
        boxes: normalised to the part of the map that counts.
        extent: rows and columns of that part, in its upper left corner.
        size: S, points in a row and in a column.
        outside: value of a point outside of that part. `zero`: 0. `fade`: its four neighbours that
            are outside are 0.
    """
    boxes, extent = jnp.asarray(boxes, jnp.float32), jnp.asarray(extent, jnp.float32)
    rows, columns = (
        _bilinear(_edge_points(boxes[:, i], boxes[:, i + 2], side, size), side, outside)
        for i, side in enumerate((extent[..., 0], extent[..., 1]))
    )
    return Samples(rows, columns)


def _edge_points(
    low: Float32[Array, "P"], high: Float32[Array, "P"], side: Float32[Array, "*P"], size: int
) -> Float32[Array, "P {size}"]:
    """Returns the coordinates of evenly spaced points from edge to edge."""
    last = side - 1
    if size == 1:
        return (0.5 * (low + high) * last)[:, None]
    step = quotient((high - low) * last, size - 1)
    offsets = product(jnp.arange(size, dtype=jnp.float32), step[:, None])
    return product(low, last)[:, None] + offsets


def _bilinear(
    points: Float32[Array, "P S"], side: Float32[Array, "*P"], outside: Outside
) -> AxisSamples:
    """Returns the two neighbours of points on an axis of `side` cells, `[]` or `[P]`."""
    last = side[..., None] - 1
    floor = jnp.floor(points)
    neighbours = jnp.stack([floor, floor + 1], axis=-1)
    fraction = points - floor
    weights = jnp.stack([1 - fraction, fraction], axis=-1)
    tested = points[..., None] if outside == "zero" else neighbours
    inside = (tested >= 0) & (tested <= last[..., None])
    indices = jnp.clip(neighbours, 0, last[..., None]).astype(jnp.int32)
    return AxisSamples(indices, jnp.where(inside, weights, 0))


def cell_samples(
    boxes: Real[ArrayLike, "P 4"], extent: PerBox, window: PerBox, *, size: int, samples: int
) -> Samples:
    """Returns the samples of RoIAlign: each is the mean of bilinear samples in a cell of a box.

    As torchvision's `roi_align(aligned=True)`: a box has size x size equal cells, a cell samples x
    samples evenly spaced points, none of them on its edges. A coordinate y of a box is the point
    `y * height - 0.5`. Points up to one row outside have the value of the edge, points beyond 0.

    Args:
        boxes: normalised to the window.
        extent: rows and columns of the map that count.
        window: height and width of the window in cells of the map, its pixels divided by the map's
            stride.
        size: S, rows and columns of cells.
        samples: points in a row and in a column of a cell.
    """
    boxes, extent = jnp.asarray(boxes, jnp.float32), jnp.asarray(extent, jnp.float32)
    window = jnp.asarray(window, jnp.float32)
    places = (jnp.arange(size * samples, dtype=jnp.float32) + 0.5) / (size * samples)

    def along(axis: int) -> AxisSamples:
        low, high = boxes[:, axis, None], boxes[:, axis + 2, None]
        points = (low + (high - low) * places) * window[..., axis, None] - 0.5
        last = extent[..., axis] - 1
        near = (points >= -1) & (points <= last[..., None] + 1)
        inner = jnp.clip(points, 0, last[..., None])
        taps = _bilinear(inner, extent[..., axis], "fade")
        weights = jnp.where(near[..., None], taps.weights, 0) / samples
        # The points of a cell are neighbours of one sample.
        shape = (boxes.shape[0], size, samples * 2)
        return AxisSamples(taps.indices.reshape(shape), weights.reshape(shape))

    return Samples(along(0), along(1))


def pyramid_level(
    boxes: Real[ArrayLike, "P 4"], window: Real[ArrayLike, "2"], levels: int
) -> Int32[Array, "P"]:
    """Returns the index of the level of each box (arXiv:1612.03144, 1).

    It is `levels - 2 + floor(log2(sqrt(area) / 224))`, limited to `0..levels - 1`; 0 for a box
    without area.

    Args:
        boxes: normalised to the window.
        window: height and width in pixels.
        levels: the number of levels; index 0 is the finest.
    """
    if levels == 1:
        # Comparisons with no border are arrays without elements, which OpenVINO misreads.
        return jnp.zeros(jnp.shape(boxes)[:-1], jnp.int32)
    height, width = jnp.asarray(window, jnp.float32)
    side = jnp.sqrt(jnp.maximum(area(boxes), 0)) * (jnp.sqrt(height * width) / 224)
    # Comparisons are exact where the logarithm of a power of two is not.
    borders = jnp.asarray([2.0 ** (index - levels + 2) for index in range(1, levels)])
    return jnp.sum(side[:, None] >= borders, axis=-1, dtype=jnp.int32)


def gathered(
    maps: Sequence[Float[Array, "_ _ C"]], levels: Int32[Array, "P"], samples: Samples
) -> Float[Array, "P S T C"]:
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


def _starts_of_rows(
    maps: Sequence[Float[Array, "_ _ C"]], levels: Int32[Array, "P"], rows: Int32[Array, "P S K"]
) -> Int32[Array, "P S K"]:
    """Returns the indices of the rows' first cells in all cells of all maps."""
    heights, widths = np.array([features.shape[:2] for features in maps], np.int32).T
    starts = np.cumsum(heights * widths, dtype=np.int32) - heights * widths
    start, width = jnp.asarray(starts)[levels], jnp.asarray(widths)[levels]
    return start[:, None, None] + rows * width[:, None, None]


def _outer(
    function: Callable[[Array, Array], Array], rows: Real[Array, "P S"], columns: Real[Array, "P T"]
) -> Real[Array, "P S T"]:
    """Applies a function to all pairs of each box."""
    return function(rows[:, :, None], columns[:, None, :])


def multiplied(
    maps: Sequence[Float[Array, "_ _ C"]], levels: Int32[Array, "P"], samples: Samples
) -> Float[Array, "P S T C"]:
    """Computes samples as two products of matrices for each map, in the maps' type.

    Boxes of other levels have weights of 0: all boxes are work on every level.
    """
    total: Array | None = None
    for level, features in enumerate(maps):
        rows, columns = (
            _matrix(axis, side) for axis, side in zip(samples, features.shape, strict=False)
        )
        if len(maps) > 1:
            rows = jnp.where((levels == level)[:, None, None], rows, 0)
        crops = _product(features, rows, columns)
        total = crops if total is None else total + crops
    assert total is not None  # there is a map
    return total


def _matrix(samples: AxisSamples, side: int) -> Float32[Array, "P S {side}"]:
    """Returns the weights of all rows, or columns, of a map."""
    hits = samples.indices[..., None] == jnp.arange(side)
    return jnp.sum(jnp.where(hits, samples.weights[..., None], 0), axis=-2)


def _product(
    features: Float[Array, "H W C"], rows: Float[Array, "P S H"], columns: Float[Array, "P T W"]
) -> Float[Array, "P S T C"]:
    rows, columns = rows.astype(features.dtype), columns.astype(features.dtype)
    # Accelerators would round float32 to fewer bits.
    highest = lax.Precision.HIGHEST
    bands = jnp.einsum("psh,hwc->pswc", rows, features, precision=highest)
    return jnp.einsum("ptw,pswc->pstc", columns, bands, precision=highest)
