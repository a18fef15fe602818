"""Anchors, computed once on the host: the boxes that predictions are relative to.

Anchors are normalised to the network input and never clipped. They have the order of the head's
channels: feature maps from fine to coarse; in a map rows, then columns, then the boxes of one
location.

There are four kinds: grids of boxes (the Object Detection API's grid and multiscale anchors,
RetinaNet's among them), SSD's with one scale a feature map
(`object_detection/anchor_generators/multiple_grid_anchor_generator.py`, arXiv:1512.02325), and
SSD's default boxes in whole steps of pixels, as in MLPerf's SSD ResNet-34.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

Shape = tuple[int, int]
AnchorBoxes = Float32[np.ndarray, "A 4"]
Order = Int64[np.ndarray, "A"] | None


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


class AnchorGenerator(NamedTuple):
    """The functions of one kind of anchors."""

    per_location: tuple[int, ...]
    """Anchors at one location of each feature map."""
    boxes: Callable[[tuple[Shape, ...], Shape], AnchorBoxes]
    """From the shapes of the feature maps and of the network input to anchors."""
    order: Callable[[tuple[Shape, ...]], Order] = lambda feature_shapes: None
    """From the shapes of the feature maps to the index of the head's prediction for each anchor;
    None: the same order."""
    grids: Callable[[Shape], Sequence[Grid]] | None = None
    """From the shape of the network input to a grid for each map, for anchors that are grids."""


def grid_anchors(
    feature_shape: tuple[int, int],
    specs: Sequence[BoxSpec],
    base: Sequence[float] | Float[np.ndarray, "2"],
    stride: tuple[float, float],
    offset: tuple[float, float],
) -> Float32[np.ndarray, "A 4"]:
    """Returns the anchors of one feature map, all specs at every location.

    Args:
        feature_shape: height and width of the map.
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
) -> Float32[np.ndarray, "A 4"]:
    """Returns the anchors of one grid a map, normalised; shapes are (height, width)."""
    # The original multiplies by the rounded reciprocal, which differs in the last bit.
    shrink = np.tile(rounded([1 / side for side in image_shape]), 2).astype(np.float32)
    return anchors_in_pixels(feature_shapes, grids) * shrink


def anchors_in_pixels(
    feature_shapes: Sequence[tuple[int, int]], grids: Sequence[Grid]
) -> Float32[np.ndarray, "A 4"]:
    """Returns the anchors of one grid a map in pixels of the network input."""
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


# Scale of the square box in the lowest layer if its boxes are reduced.
_LOWEST_LAYER_SCALE = 0.1


def ssd_anchors(
    feature_shapes: Sequence[tuple[int, int]],
    image_shape: tuple[int, int],
    *,
    min_scale: float,
    max_scale: float,
    scales: Sequence[float],
    aspect_ratios: Sequence[float],
    interpolated_scale_aspect_ratio: float,
    reduce_boxes_in_lowest_layer: bool,
    base_anchor_height: float = 1.0,
    base_anchor_width: float = 1.0,
    height_strides: Sequence[int] = (),
    width_strides: Sequence[int] = (),
    height_offsets: Sequence[int] = (),
    width_offsets: Sequence[int] = (),
) -> Float32[np.ndarray, "A 4"]:
    """Returns SSD's anchors.

    Args:
        feature_shapes: height and width of every map that carries anchors.
        image_shape: height and width of the network input, in pixels.
        min_scale: scale of the first map, as a share of the image's shorter side.
        max_scale: scale of the last map; those between lie at equal distances.
        scales: one scale a map instead of the two above, if any.
        aspect_ratios: width over height of the boxes with the map's own scale.
        interpolated_scale_aspect_ratio: aspect ratio of one more box, with a scale between this
            map's and the next one's; 0: no such box.
        reduce_boxes_in_lowest_layer: three boxes on the first map for any aspect ratios.
        base_anchor_height: height of scale 1, as a share of the shorter side.
        base_anchor_width: width of scale 1.
        height_strides: distance of the rows of centres in pixels, one a map; empty: image / map.
        width_strides: distance of the columns of centres in pixels.
        height_offsets: first row of centres in pixels, one a map; empty: half a stride.
        width_offsets: first column of centres in pixels.
    """
    count = len(feature_shapes)
    specs = _ssd_box_specs(
        _ssd_scales(count, min_scale, max_scale, scales),
        aspect_ratios,
        interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer,
    )
    image = np.asarray(image_shape, np.float32)
    base = np.asarray([base_anchor_height, base_anchor_width], np.float32) * (image.min() / image)
    heights, widths = zip(*feature_shapes, strict=True)
    rows = _centers(heights, image_shape[0], height_strides, height_offsets)
    columns = _centers(widths, image_shape[1], width_strides, width_offsets)
    return np.concatenate(
        [
            grid_anchors(shape, boxes, base, (row[0], column[0]), (row[1], column[1]))
            for shape, boxes, row, column in zip(feature_shapes, specs, rows, columns, strict=True)
        ]
    )


def _centers(
    counts: Sequence[int], pixels: int, strides: Sequence[int], offsets: Sequence[int]
) -> Iterator[tuple[float, float]]:
    """Yields the distance of centres along an axis and the first centre, map by map."""
    steps = [stride / pixels for stride in strides] or [1 / count for count in counts]
    firsts = [offset / pixels for offset in offsets] or [step / 2 for step in steps]
    return zip(steps, firsts, strict=True)


def ssd_anchors_per_location(
    num_layers: int,
    *,
    aspect_ratios: Sequence[float],
    interpolated_scale_aspect_ratio: float,
    reduce_boxes_in_lowest_layer: bool,
) -> tuple[int, ...]:
    """Returns the number of `ssd_anchors` at one location of each of `num_layers` maps."""
    specs = _ssd_box_specs(
        [1.0] * (num_layers + 1),
        aspect_ratios,
        interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer,
    )
    return tuple(len(layer) for layer in specs)


def _ssd_scales(
    count: int, min_scale: float, max_scale: float, scales: Sequence[float]
) -> list[float]:
    """Returns one scale a map, and 1.0, towards which the last one is interpolated."""
    if scales:
        return [*rounded(scales), 1.0]
    low, high = rounded([min_scale, max_scale])
    return [low + (high - low) * i / max(count - 1, 1) for i in range(count)] + [1.0]


def _ssd_box_specs(
    scales: Sequence[float],
    aspect_ratios: Sequence[float],
    interpolated_scale_aspect_ratio: float,
    reduce_boxes_in_lowest_layer: bool,
) -> list[list[BoxSpec]]:
    """Returns the boxes of each map; `scales` has one entry more than there are maps."""
    layers = []
    for i, (scale, following) in enumerate(itertools.pairwise(scales)):
        if i == 0 and reduce_boxes_in_lowest_layer:
            layers.append(
                [BoxSpec(_LOWEST_LAYER_SCALE, 1.0), BoxSpec(scale, 2.0), BoxSpec(scale, 0.5)]
            )
            continue
        specs = [BoxSpec(scale, ratio) for ratio in rounded(aspect_ratios)]
        if interpolated_scale_aspect_ratio > 0:
            between = math.sqrt(scale * following)
            specs.append(BoxSpec(between, interpolated_scale_aspect_ratio))
        layers.append(specs)
    return layers


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
) -> Float32[np.ndarray, "A 4"]:
    """Returns the normalised boxes, location by location, rows before columns.

    Clipping is done in centre form: a clipped box keeps its centre, and edges may lie outside the
    image. For the arguments see `default_boxes_in_center_form`.
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
) -> Float64[np.ndarray, "A 4"]:
    """Returns the boxes of `default_boxes` as centre y and x, height and width.

    Shapes are heights and widths, the image's in pixels; `clip` clips centres and sizes to 0..1.
    """
    maps = [
        _boxes_of_map(shape, image_shape, spec)
        for shape, spec in zip(feature_shapes, specs, strict=True)
    ]
    centered = np.concatenate(maps)
    return np.clip(centered, 0.0, 1.0) if clip else centered


def anchor_major_order(
    feature_shapes: Sequence[tuple[int, int]], specs: Sequence[DefaultBoxSpec]
) -> Int64[np.ndarray, "A"]:
    """Returns the cell-major indices of the boxes, sorted by map, then spec, then cell."""
    orders, start = [], 0
    for (height, width), spec in zip(feature_shapes, specs, strict=True):
        cells = height * width
        orders.append(start + np.arange(cells * spec.boxes).reshape(cells, spec.boxes).T.ravel())
        start += cells * spec.boxes
    return np.concatenate(orders)


def _boxes_of_map(
    shape: tuple[int, int], image_shape: tuple[int, int], spec: DefaultBoxSpec
) -> Float64[np.ndarray, "A 4"]:
    """Returns the boxes of one map: centre y and x, height and width, normalised."""
    image = np.asarray(image_shape, np.float64)
    rows, columns = np.meshgrid(*map(np.arange, shape), indexing="ij")
    centers = (np.stack([rows, columns], axis=-1) + 0.5) * spec.step / image
    sizes = _sizes(spec) / image
    grid = (*shape, len(sizes), 2)
    return np.concatenate(
        [np.broadcast_to(centers[:, :, None], grid), np.broadcast_to(sizes, grid)], axis=-1
    ).reshape(-1, 4)


def _sizes(spec: DefaultBoxSpec) -> Float64[np.ndarray, "S 2"]:
    """Returns heights and widths in pixels."""
    large = math.sqrt(spec.size * spec.next_size)
    sizes = [(spec.size, spec.size), (large, large)]
    for ratio in spec.aspect_ratios:
        wide = spec.size / math.sqrt(ratio), spec.size * math.sqrt(ratio)
        sizes += [wide, wide[::-1]]
    return np.array(sizes)
