"""Anchors by their schema classes; the families in `schema` say how they are called."""

from functools import lru_cache

import numpy as np

from stillbox.boxes.anchors import AnchorBoxes, AnchorGenerator, Order, Shape, anchors_in_pixels
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of

# RetinaNet has 442,368 at 1536 x 1536.
_MOST_ANCHORS = 8_000_000


@lru_cache(maxsize=8)
def build_anchors(
    config: schema.Anchors, feature_shapes: tuple[Shape, ...], image_shape: Shape
) -> AnchorBoxes:
    """Returns the anchors, normalised to the network input, read-only.

    Shapes are heights and widths: of every feature map, and of the network input in pixels.
    """
    anchors = _generator(config).boxes(feature_shapes, image_shape)
    anchors.setflags(write=False)
    return anchors


@lru_cache(maxsize=8)
def build_pixel_anchors(
    config: schema.Anchors, feature_shapes: tuple[Shape, ...], image_shape: Shape
) -> AnchorBoxes:
    """Returns the anchors in pixels of the network input, read-only.

    As the original's detectors of two stages have them: rounding decides which of two anchors with
    equal overlaps a box is assigned to.
    """
    generator = _generator(config)
    if generator.grids is None:
        sides = np.tile(np.asarray(image_shape, np.float32), 2)
        anchors = generator.boxes(feature_shapes, image_shape) * sides
    else:
        anchors = anchors_in_pixels(feature_shapes, generator.grids(image_shape))
    anchors.setflags(write=False)
    return anchors


def anchors_per_location(config: schema.Anchors, maps: int) -> tuple[int, ...]:
    """Returns the number of anchors at one location of each of `maps` feature maps.

    Raises:
        UserError: the anchors are configured for another number of maps.
    """
    if config.count_maps() != maps:
        raise UserError(
            f"anchors are described for {config.count_maps()} feature maps, the neck makes {maps}",
            where="model.anchors",
            fix=f"describe {maps}, or change model.neck",
        )
    return _generator(config).per_location


def check_number(config: schema.Anchors, feature_shapes: tuple[Shape, ...], *, where: str) -> None:
    """Refuses anchors that fill the memory before anything else does; `where` is their path.

    Raises:
        UserError: the feature maps have too many.
    """
    locations = (rows * columns for rows, columns in feature_shapes)
    per_location = anchors_per_location(config, len(feature_shapes))
    number = sum(places * each for places, each in zip(locations, per_location, strict=True))
    if number > _MOST_ANCHORS:
        raise UserError(
            f"an image has {number:,} anchors, and at most {_MOST_ANCHORS:,} are possible",
            where=where,
            fix="take a smaller network input (model.resizer), coarser maps, or fewer scales and "
            "aspect ratios",
        )


def prediction_order(config: schema.Anchors, feature_shapes: tuple[Shape, ...]) -> Order:
    """Returns the index of the head's prediction for each anchor; None: the same order.

    Heads predict location by location; the anchors may have another order.
    """
    return _generator(config).order(feature_shapes)


def _generator(config: schema.Anchors) -> AnchorGenerator:
    generator: AnchorGenerator = implementation_of(config)(config)
    return generator
