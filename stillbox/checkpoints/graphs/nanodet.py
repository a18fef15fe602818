"""NanoDet's order of channels and edges (`RangiLyu/nanodet`).

Its images are read by OpenCV, so that the first convolution takes blue, green and red. Distances of
a box are to its left, top, right and bottom edge. stillbox has red first, and the top edge.
"""

from collections.abc import Callable, Sequence

import numpy as np

from stillbox.checkpoints.graphs.folding import Use
from stillbox.checkpoints.graphs.traced import ModelLayer
from stillbox.experiment import schema

GENERATOR = "https://github.com/RangiLyu/nanodet"
"""What `generatedBy` of a TensorFlow.js model says."""

Compute = Callable[[tuple[Use, ...]], dict[str, np.ndarray]]
_EDGES = (1, 0, 3, 2)


def in_our_order(compute: Compute, layers: Sequence[ModelLayer], model: schema.Model) -> Compute:
    """Returns a function that computes parameters like `compute`, in stillbox's order.

    Args:
        compute: returns the parameters of a layer by path.
        layers: the convolutions of the model.
        model: its configuration.
    """
    first = {layer.path for layer in layers if not layer.before}
    coder = model.anchor_stage.box_coder if model.anchor_stage else None

    def in_order(uses: tuple[Use, ...]) -> dict[str, np.ndarray]:
        arrays = compute(uses)
        for path, array in arrays.items():
            if path in first:
                arrays[path] = array[:, :, ::-1]
            elif path.split(".")[-2] == "box" and isinstance(coder, schema.DistanceBoxCoder):
                arrays[path] = _swapped_edges(array, coder.code_size // len(_EDGES))
        return arrays

    return in_order


def _swapped_edges(array: np.ndarray, bins: int) -> np.ndarray:
    edges = array.reshape(*array.shape[:-1], -1, len(_EDGES), bins)
    return edges[..., _EDGES, :].reshape(array.shape)
