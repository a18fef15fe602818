"""From the description of anchors to the anchors of a detector."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stillbox.boxes.anchors import ssd_anchors, ssd_anchors_per_location
from stillbox.errors import UserError
from stillbox.experiment import schema

Shape = tuple[int, int]


@lru_cache(maxsize=8)
def build_anchors(
    config: schema.SsdAnchors, feature_shapes: tuple[Shape, ...], image_shape: Shape
) -> NDArray[np.float32]:
    """Returns the anchors `[A, 4]`, normalised to the network input; nobody writes into them.

    Args:
        config: what stands at a location.
        feature_shapes: height and width of every feature map.
        image_shape: height and width of the network input, in pixels.
    """
    anchors = ssd_anchors(
        feature_shapes,
        image_shape,
        min_scale=config.min_scale,
        max_scale=config.max_scale,
        scales=config.scales,
        aspect_ratios=config.aspect_ratios,
        interpolated_scale_aspect_ratio=config.interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer=config.reduce_boxes_in_lowest_layer,
        base_anchor_height=config.base_anchor_height,
        base_anchor_width=config.base_anchor_width,
        height_strides=config.height_strides,
        width_strides=config.width_strides,
        height_offsets=config.height_offsets,
        width_offsets=config.width_offsets,
    )
    anchors.setflags(write=False)
    return anchors


def anchors_per_location(config: schema.SsdAnchors, maps: int) -> tuple[int, ...]:
    """Returns how many anchors stand at one location of each of the feature maps.

    Args:
        config: what stands at a location.
        maps: feature maps that the neck makes.

    Raises:
        UserError: the anchors are described for another number of maps.
    """
    if config.num_layers != maps:
        raise UserError(
            f"anchors are described for {config.num_layers} feature maps, the neck makes {maps}",
            where="model.anchors.num_layers",
            fix=f"set it to {maps}, or change model.neck.taps and model.neck.extra_depths",
        )
    return ssd_anchors_per_location(
        maps,
        aspect_ratios=config.aspect_ratios,
        interpolated_scale_aspect_ratio=config.interpolated_scale_aspect_ratio,
        reduce_boxes_in_lowest_layer=config.reduce_boxes_in_lowest_layer,
    )
