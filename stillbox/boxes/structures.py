"""The batch and the detections: pytrees of arrays of fixed shapes."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, UInt8

AnyArray = np.ndarray | Array
"""An array on the host or on devices; `ArrayLike` admits plain numbers too."""


class Batch(NamedTuple):
    """B images of H by W with room for N boxes each. Boxes are `[ymin, xmin, ymax, xmax]`."""

    images: UInt8[AnyArray, "B H W C"] | Float32[AnyArray, "B H W C"]
    """In 0..255, RGB if C is 3, resized and padded but not yet normalised."""
    boxes: Float32[AnyArray, "B N 4"]
    """Normalised to the network input, padding included."""
    classes: Int32[AnyArray, "B N"]
    """Class indices from 0; `Dataset.slots` maps them to label map ids."""
    weights: Float32[AnyArray, "B N"]
    """0 for padding and for ignored boxes."""
    true_sizes: Int32[AnyArray, "B 2"]
    """Height and width of the image inside the network input, in pixels."""
    records: Int32[AnyArray, "B"]
    """Index of the record in its data set; -1 for a padding row."""
    image_weights: Float32[AnyArray, "B"]
    """0 for a row without an image, such as padding of the last batch."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the images, padding included, in pixels."""
        height, width = self.images.shape[1:3]
        return height, width

    @property
    def image_count(self) -> Float32[Array, ""]:
        """The number of images, padding not counted."""
        return jnp.sum(jnp.asarray(self.image_weights))


class Detections(NamedTuple):
    """At most K boxes for each of B images, best first, zeros behind them."""

    boxes: Float32[Array, "B K 4"]
    """`[ymin, xmin, ymax, xmax]`, normalised to the true image unless the experiment keeps the
    frame of the padded network input."""
    scores: Float32[Array, "B K"]
    classes: Int32[Array, "B K"]
    """Class indices that start at 0."""
    count: Int32[Array, "B"]  # type: ignore[assignment]  # hides tuple.count
    """How many of the K are detections."""
    anchors: Int32[Array, "B K"]
    """The anchor that each detection was predicted at."""
    finite: Bool[Array, "B"] | None = None
    """Whether the predictions for the image are finite: suppression takes NaN for no candidate.
    None: not determined."""
