"""Anchors, computed once on the host: the boxes that predictions are relative to.

Normalised to the network input, never clipped, in the order of the head's channels: feature maps
from fine to coarse; in a map rows, then columns, then the boxes of one location.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class BoxSpec(NamedTuple):
    """One of the boxes at every location of a feature map."""

    scale: float
    """Side of the square of the same area, as a multiple of the base anchor."""
    aspect_ratio: float
    """Width over height."""


class Grid(NamedTuple):
    """The anchors of one feature map, in pixels of the network input; all pairs height first."""

    specs: tuple[BoxSpec, ...]
    """The boxes at every location."""
    base: tuple[float, float]
    """Size of the base anchor."""
    stride: tuple[float, float]
    """Distance of the centres."""
    offset: tuple[float, float]
    """Centre of the first location."""


def grid_anchors(
    feature_shape: tuple[int, int],
    specs: Sequence[BoxSpec],
    base: Sequence[float] | Floats,
    stride: tuple[float, float],
    offset: tuple[float, float],
) -> Floats:
    """Returns the anchors of one feature map, `[H * W * len(specs), 4]`.

    Args:
        feature_shape: height and width of the map, H and W.
        base: height and width of the base anchor, in any unit.
        stride: vertical and horizontal distance of the centres, in the same unit.
        offset: centre of the first location.
    """
    # Every step is rounded to float32 as in the original's graph, so that regression targets of
    # perfectly centred boxes are equal to the last bit.
    scales = np.asarray([spec.scale for spec in specs], np.float32)
    roots = np.sqrt(np.asarray([spec.aspect_ratio for spec in specs], np.float32))
    base = np.asarray(base, np.float32)
    sizes = np.stack([scales / roots * base[0], scales * roots * base[1]], axis=-1)
    rows, columns = (
        np.arange(feature_shape[axis], dtype=np.float32) * np.float32(stride[axis])
        + np.float32(offset[axis])
        for axis in (0, 1)
    )
    centers = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1)[:, :, None]
    half = np.float32(0.5) * sizes
    return np.concatenate([centers - half, centers + half], axis=-1).reshape(-1, 4)


def pixel_grid_anchors(
    feature_shapes: Sequence[tuple[int, int]],
    image_shape: tuple[int, int],
    grids: Sequence[Grid],
) -> Floats:
    """Returns the anchors of one grid a map, normalised, `[A, 4]`; shapes are (height, width)."""
    # The original multiplies by the rounded reciprocal, which differs in the last bit.
    shrink = np.tile(rounded([1 / side for side in image_shape]), 2).astype(np.float32)
    return anchors_in_pixels(feature_shapes, grids) * shrink


def anchors_in_pixels(feature_shapes: Sequence[tuple[int, int]], grids: Sequence[Grid]) -> Floats:
    """Returns the anchors of one grid a map in pixels of the network input, `[A, 4]`."""
    maps = zip(feature_shapes, grids, strict=True)
    return np.concatenate([grid_anchors(shape, *grid) for shape, grid in maps])


def scale_ratio_specs(
    scales: Sequence[float], aspect_ratios: Sequence[float], *, scale_major: bool = False
) -> tuple[BoxSpec, ...]:
    """Returns every scale at every aspect ratio.

    With `scale_major` the ratios of one scale follow each other, otherwise the scales of one ratio.
    """
    if scale_major:
        return tuple(BoxSpec(scale, ratio) for scale in scales for ratio in aspect_ratios)
    return tuple(BoxSpec(scale, ratio) for ratio in aspect_ratios for scale in scales)


def multiscale_grids(
    image_shape: tuple[int, int],
    *,
    min_level: int,
    max_level: int,
    anchor_scale: float,
    aspect_ratios: Sequence[float],
    scales_per_octave: int,
    scale_major: bool = False,
) -> tuple[Grid, ...]:
    """Returns RetinaNet's grids, one for each level (arXiv:1708.02002).

    Args:
        image_shape: height and width of the network input, in pixels.
        min_level: level of the finest map; level l has a stride of 2^l pixels.
        max_level: level of the coarsest map.
        anchor_scale: side of a level's base anchor, in strides.
        aspect_ratios: width over height.
        scales_per_octave: sizes between the base anchors of two levels.
        scale_major: as for `scale_ratio_specs`.
    """
    scales = [2.0 ** (step / scales_per_octave) for step in range(scales_per_octave)]
    specs = scale_ratio_specs(scales, aspect_ratios, scale_major=scale_major)
    grids = []
    for level in range(min_level, max_level + 1):
        stride = 2.0**level
        # If the stride does not divide the image, the first centre lies on its edge.
        row, column = (stride / 2 if side % stride == 0 else 0.0 for side in image_shape)
        base = stride * anchor_scale
        grids.append(Grid(specs, (base, base), (stride, stride), (row, column)))
    return tuple(grids)


def rounded(values: Sequence[float]) -> list[float]:
    """Returns each value rounded to float32, the precision of the original's configurations."""
    return np.asarray(values, np.float32).tolist()
