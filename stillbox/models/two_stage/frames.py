"""The part of each network input that a two-stage detector sees, and the anchors inside it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from stillbox.boxes.geometry import clip_to_window, extents_on_map
from stillbox.experiment import schema
from stillbox.models.anchors import anchors_per_location, build_pixel_anchors
from stillbox.models.postprocessing import window_of

Shape = tuple[int, int]


class AnchorGrid(NamedTuple):
    """The anchors of all feature maps of one network input, A in all."""

    boxes: NDArray[np.float32]
    """`[A, 4]`, in pixels of the network input, not clipped."""
    rows: NDArray[np.int32]
    """`[A]`, the row of the map that the anchor belongs to."""
    columns: NDArray[np.int32]
    """`[A]`, its column."""
    maps: NDArray[np.int32]
    """`[A]`, the number of the map."""
    shapes: tuple[Shape, ...]
    """Heights and widths of the maps."""


class FramedAnchors(NamedTuple):
    """The anchors of B images."""

    boxes: jax.Array
    """`[B, A, 4]`, in pixels of the network input, clipped if the configuration says so."""
    usable: jax.Array
    """`[B, A]` bool, false for anchors that do not exist for an image of this size."""


def anchor_grid(config: schema.Anchors, shapes: tuple[Shape, ...], input_size: Shape) -> AnchorGrid:
    """Returns the anchors of feature maps of `shapes`, location by location.

    Args:
        config: the anchors.
        shapes: heights and widths of the maps.
        input_size: height and width of the network input, in pixels.
    """
    counts = anchors_per_location(config, len(shapes))
    cells = [
        np.repeat(np.indices(shape, np.int32).reshape(2, -1), count, axis=1)
        for shape, count in zip(shapes, counts, strict=True)
    ]
    rows, columns = np.concatenate(cells, axis=1)
    maps = np.repeat(np.arange(len(shapes), dtype=np.int32), [cell.shape[1] for cell in cells])
    return AnchorGrid(build_pixel_anchors(config, shapes, input_size), rows, columns, maps, shapes)


def frame_anchors(
    grid: AnchorGrid, sizes: jax.Array, input_size: Shape, *, clip: bool
) -> FramedAnchors:
    """Returns the anchors of images of `sizes` `[B, 2]`, heights and widths in pixels.

    Args:
        grid: the anchors of the whole network input.
        sizes: of the part of each network input that counts.
        input_size: height and width of the network input, in pixels.
        clip: clip anchors to that part. False: those that are not wholly inside are not usable,
            as in the original's training without `clip_anchors_to_image`.
    """
    windows = window_of(sizes.astype(jnp.float32))[:, None]
    extents = [extents_on_map(sizes, shape, input_size) for shape in grid.shapes]
    ends = jnp.stack(extents, axis=1)[:, grid.maps]  # [B, A, 2]
    rows, columns = jnp.asarray(grid.rows), jnp.asarray(grid.columns)
    exists = (rows < ends[..., 0]) & (columns < ends[..., 1])
    boxes = jnp.broadcast_to(grid.boxes, (sizes.shape[0], *grid.boxes.shape))
    if clip:
        return FramedAnchors(clip_to_window(boxes, windows), exists)
    inside = jnp.all(boxes[..., :2] >= windows[..., :2], axis=-1)
    inside &= jnp.all(boxes[..., 2:] <= windows[..., 2:], axis=-1)
    return FramedAnchors(boxes, exists & inside)
