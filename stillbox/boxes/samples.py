"""Sample points of boxes on feature maps, axis by axis.

Points of the original's `crop_and_resize` (`object_detection/utils/spatial_transform_ops.py`) and
of RoIAlign (arXiv:1703.06870). Coordinates on a map are those of the centres of its cells: 0 is the
first row or column.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes.geometry import area
from stillbox.boxes.rounding import product, quotient

Outside = Literal["zero", "fade"]


class AxisSamples(NamedTuple):
    """Samples along one axis of a map: weighted sums of K of its rows, or columns."""

    indices: Array
    """`[P, S, K]` int32 of rows or columns, all of them inside the map."""
    weights: Array
    """`[P, S, K]` float32, 0 for what is outside."""


class Samples(NamedTuple):
    """A grid of samples for each box; a cell weighs its row's weight times its column's."""

    rows: AxisSamples
    columns: AxisSamples


def edge_samples(boxes: ArrayLike, extent: ArrayLike, *, size: int, outside: Outside) -> Samples:
    """Returns evenly spaced bilinear samples from edge to edge of boxes; one is in the centre.

    A coordinate y is the point `y * (H - 1)` of H rows. The last point of a box that ends at 1 may
    lie beyond the last row by rounding, and is outside then, as in the original; see `rounding`.

    Args:
        boxes: `[P, 4]`, normalised to the part of the map that counts.
        extent: `[2]` or `[P, 2]`, rows and columns of that part, in its upper left corner.
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


def _edge_points(low: Array, high: Array, side: Array, size: int) -> Array:
    """Returns coordinates `[P, S]` of the points between two edges `[P]`."""
    last = side - 1
    if size == 1:
        return (0.5 * (low + high) * last)[:, None]
    step = quotient((high - low) * last, size - 1)
    offsets = product(jnp.arange(size, dtype=jnp.float32), step[:, None])
    return product(low, last)[:, None] + offsets


def _bilinear(points: Array, side: Array, outside: Outside) -> AxisSamples:
    """Returns the two neighbours of points `[P, S]` on an axis of `side` `[]` or `[P]` cells."""
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
    boxes: ArrayLike, extent: ArrayLike, window: ArrayLike, *, size: int, samples: int
) -> Samples:
    """Returns the samples of RoIAlign: each is the mean of bilinear samples in a cell of a box.

    As torchvision's `roi_align(aligned=True)`: a box has size x size equal cells, a cell samples x
    samples evenly spaced points, none of them on its edges. A coordinate y of a box is the point
    `y * height - 0.5`. Points up to one row outside have the value of the edge, points beyond 0.

    Args:
        boxes: `[P, 4]`, normalised to the window.
        extent: `[2]` or `[P, 2]`, rows and columns of the map that count.
        window: `[2]` or `[P, 2]`, height and width of the window in cells of the map, its pixels
            divided by the map's stride.
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
        found = _bilinear(inner, extent[..., axis], "fade")
        weights = jnp.where(near[..., None], found.weights, 0) / samples
        # The points of a cell are neighbours of one sample.
        shape = (boxes.shape[0], size, samples * 2)
        return AxisSamples(found.indices.reshape(shape), weights.reshape(shape))

    return Samples(along(0), along(1))


def pyramid_level(boxes: ArrayLike, window: ArrayLike, levels: int) -> Array:
    """Returns the index of the level of each box `[P, 4]`, `[P]` int32 (arXiv:1612.03144, 1).

    It is `levels - 2 + floor(log2(sqrt(area) / 224))`, limited to `0..levels - 1`; 0 for a box
    without area.

    Args:
        boxes: normalised to the window.
        window: `[2]`, height and width in pixels.
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
