"""SSD's default boxes in whole steps of pixels (arXiv:1512.02325), as in MLPerf's SSD ResNet-34."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class DefaultBoxSpec(NamedTuple):
    """The boxes at every location of one feature map, in pixels of the network input."""

    size: float
    """Side of the small square."""
    next_size: float
    """The large square has the geometric mean of both sizes."""
    step: float
    """Distance of the centres."""
    aspect_ratios: tuple[float, ...]
    """Each adds a wide and a high box with the area of the small square."""

    @property
    def boxes(self) -> int:
        """Boxes at one location."""
        return 2 + 2 * len(self.aspect_ratios)


def default_boxes(
    feature_shapes: Sequence[tuple[int, int]],
    image_shape: tuple[int, int],
    specs: Sequence[DefaultBoxSpec],
    *,
    clip: bool,
) -> Floats:
    """Returns the boxes `[A, 4]`, normalised, those of a location together, rows before columns.

    Clipping is done in centre form: a clipped box keeps its centre, and edges may lie outside the
    image. The arguments are those of `default_boxes_in_center_form`.
    """
    centered = default_boxes_in_center_form(feature_shapes, image_shape, specs, clip=clip)
    centers, halves = centered[:, :2], centered[:, 2:] / 2
    return np.concatenate([centers - halves, centers + halves], axis=1).astype(np.float32)


def default_boxes_in_center_form(
    feature_shapes: Sequence[tuple[int, int]],
    image_shape: tuple[int, int],
    specs: Sequence[DefaultBoxSpec],
    *,
    clip: bool,
) -> Doubles:
    """Returns the same as centre y and x, height and width, in float64.

    Shapes are heights and widths, that of the image in pixels; `clip` clips centres and sizes to
    0..1.
    """
    maps = [
        _boxes_of_map(shape, image_shape, spec)
        for shape, spec in zip(feature_shapes, specs, strict=True)
    ]
    centered = np.concatenate(maps)
    return np.clip(centered, 0.0, 1.0) if clip else centered


def anchor_major_order(
    feature_shapes: Sequence[tuple[int, int]], specs: Sequence[DefaultBoxSpec]
) -> NDArray[np.int64]:
    """Returns `[A]`: the cell-major indices of the boxes, sorted by map, then spec, then cell."""
    orders, start = [], 0
    for (height, width), spec in zip(feature_shapes, specs, strict=True):
        cells = height * width
        orders.append(start + np.arange(cells * spec.boxes).reshape(cells, spec.boxes).T.ravel())
        start += cells * spec.boxes
    return np.concatenate(orders)


def _boxes_of_map(
    shape: tuple[int, int], image_shape: tuple[int, int], spec: DefaultBoxSpec
) -> Doubles:
    """Returns `[H * W * boxes, 4]`: centre y and x, height and width, normalised."""
    image = np.asarray(image_shape, np.float64)
    rows, columns = np.meshgrid(*map(np.arange, shape), indexing="ij")
    centers = (np.stack([rows, columns], axis=-1) + 0.5) * spec.step / image
    sizes = _sizes(spec) / image
    grid = (*shape, len(sizes), 2)
    return np.concatenate(
        [np.broadcast_to(centers[:, :, None], grid), np.broadcast_to(sizes, grid)], axis=-1
    ).reshape(-1, 4)


def _sizes(spec: DefaultBoxSpec) -> Doubles:
    """Returns heights and widths `[boxes, 2]` in pixels."""
    large = math.sqrt(spec.size * spec.next_size)
    sizes = [(spec.size, spec.size), (large, large)]
    for ratio in spec.aspect_ratios:
        wide = spec.size / math.sqrt(ratio), spec.size * math.sqrt(ratio)
        sizes += [wide, wide[::-1]]
    return np.array(sizes)
