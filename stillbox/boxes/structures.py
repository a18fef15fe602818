"""The batch and the detections: pytrees of arrays of fixed shapes."""

from typing import NamedTuple

import numpy as np
from jax import Array
from numpy.typing import NDArray

Floats = NDArray[np.float32] | Array
Ints = NDArray[np.int32] | Array
Pixels = NDArray[np.uint8] | Floats


class Batch(NamedTuple):
    """B images of H by W with room for N boxes each. Boxes are `[ymin, xmin, ymax, xmax]`."""

    images: Pixels
    """`[B, H, W, 3]` float32 or uint8, RGB in 0..255, resized and padded but not yet normalised."""
    boxes: Floats
    """`[B, N, 4]` float32, normalised to the network input, padding included."""
    classes: Ints
    """`[B, N]` int32, class indices from 0; `Dataset.slots` maps them to label map ids."""
    weights: Floats
    """`[B, N]` float32, 0 for padding and for ignored boxes."""
    true_sizes: Ints
    """`[B, 2]` int32, height and width of the image inside the network input, in pixels."""
    records: Ints
    """`[B]` int32, index of the record in its data set; -1 for a padding row."""
    image_weights: Floats
    """`[B]` float32, 0 for a row without an image, such as padding of the last batch."""


class Detections(NamedTuple):
    """At most K boxes for each of B images, best first, zeros behind them."""

    boxes: Array
    """`[B, K, 4]` float32, `[ymin, xmin, ymax, xmax]`, normalised to the true image unless the
    experiment keeps the frame of the padded network input."""
    scores: Array
    """`[B, K]` float32."""
    classes: Array
    """`[B, K]` int32, class indices that start at 0."""
    count: Array  # type: ignore[assignment]  # hides tuple.count
    """`[B]` int32, how many of the K are detections."""
    anchors: Array
    """`[B, K]` int32, the anchor that each detection was predicted at."""
    finite: Array | None = None
    """`[B]` bool, whether the predictions for the image are finite: suppression takes NaN for no
    candidate. None: not determined."""
