"""From images to detections, as one function of a detector's arrays."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stillbox.boxes.detections import Detections
from stillbox.experiment import schema
from stillbox.models.parallel import on_own_rows
from stillbox.models.postprocess import postprocess
from stillbox.models.variables import Arrays, bind_detector

DetectFunction = Callable[[Arrays, Arrays, jax.Array, jax.Array], Detections]


def make_detect(graph: Any, anchors: np.ndarray, model: schema.Model) -> DetectFunction:  # noqa: ANN401
    """Returns `(params, stats, images, true_sizes) -> Detections`, not yet compiled.

    The arrays are arguments and not constants: evaluation during training compiles once and is
    then called with ever new parameters.

    Args:
        graph: static part of the detector, from `split_detector`.
        anchors: `[A, 4]`, normalised to the network input.
        model: the detector's description.
    """

    def detect(
        params: Arrays, stats: Arrays, images: jax.Array, true_sizes: jax.Array
    ) -> Detections:
        predictions = bind_detector(graph, params, stats)(images, train=False)
        # Sorting and suppressing are loops, and no image needs another one for them.
        finish = on_own_rows(
            lambda found, sizes: postprocess(found, anchors, sizes, model), ("rows", "rows"), "rows"
        )
        detections: Detections = finish(predictions, true_sizes)
        return detections

    return detect
