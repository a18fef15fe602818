"""A detector as shapes and types only: enough to trace and to compile, with no array made."""

from typing import Any, NamedTuple

import jax
from flax import nnx
from numpy.typing import NDArray

from stillbox.experiment import schema
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector


class AbstractDetector(NamedTuple):
    """What a compiled function needs to know of a detector."""

    graph: Any
    """Its static part, equal to that of the same detector with arrays."""
    params: dict[str, jax.ShapeDtypeStruct]
    """Shapes of the parameters by path."""
    stats: dict[str, jax.ShapeDtypeStruct]
    """Shapes of the moving statistics by path."""
    anchors: NDArray[Any]
    """`[A, 4]` float32, normalised to the network input."""


def abstract_detector(model: schema.Model, dtype: str) -> AbstractDetector:
    """Describes the detector that `build_detector` would build.

    Args:
        model: its description.
        dtype: of activations and products, `float32` or `bfloat16`.

    Raises:
        UserError: as `build_detector`.
    """
    detector = nnx.eval_shape(lambda: build_detector(model, dtype=jax.numpy.dtype(dtype)))
    graph, params, stats = split_detector(detector)
    return AbstractDetector(graph, params, stats, detector.anchors)  # type: ignore[arg-type]
