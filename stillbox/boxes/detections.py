"""Detections in arrays of fixed size."""

from typing import NamedTuple

from jax import Array


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
