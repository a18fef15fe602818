"""SSD's anchors: one scale a feature map, several aspect ratios (arXiv:1512.02325).

As `object_detection/anchor_generators/multiple_grid_anchor_generator.py`.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from stillbox.boxes.anchors import BoxSpec, Floats, grid_anchors, rounded

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
) -> Floats:
    """Returns SSD's anchors, `[A, 4]`.

    Args:
        feature_shapes: height and width of every map that carries anchors.
        image_shape: height and width of the network input, in pixels.
        min_scale: scale of the first map, as a share of the image's shorter side.
        max_scale: scale of the last map; those between lie at equal distances.
        scales: one scale a map instead of the two above, if any.
        aspect_ratios: width over height of the boxes with the map's own scale.
        interpolated_scale_aspect_ratio: aspect ratio of one more box, whose scale lies between
            this map's and the next one's; 0: no such box.
        reduce_boxes_in_lowest_layer: three boxes on the first map for any aspect ratios.
        base_anchor_height: height of scale 1, as a share of the shorter side.
        base_anchor_width: width of scale 1.
        height_strides: distance of the rows of centres in pixels, one a map; empty: image / map.
        width_strides: distance of the columns of centres in pixels.
        height_offsets: first row of centres in pixels, one a map; empty: half a stride.
        width_offsets: first column of centres in pixels.

    Raises:
        ValueError: a list has not one entry a map, or an aspect ratio is not positive.
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
    strides, offsets = [], []
    for axis, (stride, offset) in enumerate(
        [(height_strides, height_offsets), (width_strides, width_offsets)]
    ):
        _check_length("strides", stride, count)
        _check_length("offsets", offset, count)
        pixels = image_shape[axis]
        strides.append([step / pixels for step in stride] or [1 / s[axis] for s in feature_shapes])
        offsets.append([o / pixels for o in offset] or [step / 2 for step in strides[axis]])
    return np.concatenate(
        [
            grid_anchors(
                feature_shapes[i],
                specs[i],
                base,
                (strides[0][i], strides[1][i]),
                (offsets[0][i], offsets[1][i]),
            )
            for i in range(count)
        ]
    )


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
    _check_length("scales", scales, count)
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
    if any(ratio <= 0 for ratio in aspect_ratios):
        raise ValueError(f"aspect ratios are positive numbers, not {tuple(aspect_ratios)}")
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


def _check_length(name: str, values: Sequence[float], count: int) -> None:
    if values and len(values) != count:
        raise ValueError(
            f"{len(values)} {name} for {count} feature maps: give one for each map, or none"
        )
