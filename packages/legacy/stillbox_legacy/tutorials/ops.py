"""`object_detection.utils.ops`: masks of boxes on arrays and on tensors of TensorFlow."""

import functools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The least height or width of a box, in fractions of the image.
_LEAST_SIDE = 1e-4


def reframe_box_masks_to_image_masks(
    box_masks: Any,  # noqa: ANN401
    boxes: Any,  # noqa: ANN401
    image_height: int,
    image_width: int,
    resize_method: str = "bilinear",
) -> Any:  # noqa: ANN401
    """Returns masks of boxes as masks of the image, 0 outside of the boxes.

    The models of stillbox have no masks; models of other programs do.

    Args:
        box_masks: `[N, h, w]`, an array or a tensor; the result is one too.
        boxes: `[N, 4]`, ymin, xmin, ymax, xmax in 0..1.
        image_height: rows of the result.
        image_width: columns of the result.
        resize_method: `bilinear`, or `nearest`.

    Returns:
        `[N, image_height, image_width]` of the type of the masks.

    Raises:
        ValueError: there is no such method.
    """
    if resize_method not in ("bilinear", "nearest"):
        raise ValueError("resize_method must be 'bilinear' or 'nearest'")
    reframe = functools.partial(_reframed, nearest=resize_method == "nearest")
    tf = sys.modules.get("tensorflow")
    if tf is None or not (tf.is_tensor(box_masks) or tf.is_tensor(boxes)):
        return reframe(np.asarray(box_masks), np.asarray(boxes), image_height, image_width)
    masks = tf.convert_to_tensor(box_masks)
    reframed = tf.numpy_function(reframe, [masks, boxes, image_height, image_width], masks.dtype)
    return tf.ensure_shape(reframed, [None, None, None])


def _reframed(
    masks: NDArray[Any], boxes: NDArray[Any], height: int, width: int, *, nearest: bool
) -> NDArray[Any]:
    """Samples each mask at the pixels of the image, as `tf.image.crop_and_resize` does."""
    reframed = np.zeros((len(masks), int(height), int(width)), masks.dtype)
    for row, (mask, box) in enumerate(zip(masks, boxes, strict=True)):
        ys = _places(box[0], box[2], int(height), mask.shape[0])
        xs = _places(box[1], box[3], int(width), mask.shape[1])
        inside = _is_inside(ys, mask.shape[0])[:, None] & _is_inside(xs, mask.shape[1])
        sampled = _nearest(mask, ys, xs) if nearest else _bilinear(mask, ys, xs)
        reframed[row] = np.where(inside, sampled, 0).astype(masks.dtype)
    return reframed


def _places(low: float, high: float, pixels: int, side: int) -> NDArray[np.float64]:
    """Returns where the pixels of the image lie on an axis of the mask, in its pixels."""
    size = max(float(high) - float(low), _LEAST_SIDE)
    first, last = -float(low) / size, (1 - float(low)) / size
    if pixels == 1:
        return np.array([0.5 * (first + last) * (side - 1)])
    return np.linspace(first, last, pixels) * (side - 1)


def _is_inside(places: NDArray[np.float64], side: int) -> NDArray[np.bool_]:
    return (places >= 0) & (places <= side - 1)


def _nearest(mask: NDArray[Any], ys: NDArray[np.float64], xs: NDArray[np.float64]) -> NDArray[Any]:
    rows, columns = (
        np.clip(np.floor(at + 0.5).astype(int), 0, side - 1)
        for at, side in zip((ys, xs), mask.shape, strict=True)
    )
    sampled: NDArray[Any] = mask[np.ix_(rows, columns)]
    return sampled


def _bilinear(
    mask: NDArray[Any], ys: NDArray[np.float64], xs: NDArray[np.float64]
) -> NDArray[np.float64]:
    resampled = mask.astype(np.float64)
    for axis, at in enumerate((ys, xs)):
        side = mask.shape[axis]
        low = np.clip(np.floor(at).astype(int), 0, side - 1)
        high = np.clip(low + 1, 0, side - 1)
        share = (at - low).reshape((-1, 1) if axis == 0 else (1, -1))
        resampled = resampled.take(low, axis) * (1 - share) + resampled.take(high, axis) * share
    return resampled
