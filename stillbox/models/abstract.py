"""A detector as shapes and types only: enough to trace and to compile, with no array made."""

from typing import Any, NamedTuple

import jax
from flax import nnx

from stillbox.experiment import schema
from stillbox.models.build import build_detector
from stillbox.models.variables import bind_detector, split_detector


class AbstractDetector(NamedTuple):
    """What a compiled function needs to know of a detector."""

    graph: Any
    """Its static part, equal to that of the same detector with arrays."""
    params: dict[str, jax.ShapeDtypeStruct]
    """Shapes of the parameters by path."""
    stats: dict[str, jax.ShapeDtypeStruct]
    """Shapes of the moving statistics by path."""

    def module(self) -> Any:  # noqa: ANN401
        """Returns the detector itself, with shapes instead of arrays."""
        return bind_detector(self.graph, self.params, self.stats)  # type: ignore[arg-type]


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
    return AbstractDetector(graph, params, stats)  # type: ignore[arg-type]
