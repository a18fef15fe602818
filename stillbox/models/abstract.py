"""A detector as shapes and types, enough to trace and to compile without arrays."""

from typing import Any, NamedTuple

import jax
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.build import build_detector
from stillbox.models.layers.initializers import ShapesOnly
from stillbox.models.variables import bind_detector, split_detector

# SpineNet-190 has 985. Tracing takes some milliseconds for each.
_MOST_ARRAYS = 1600


class AbstractDetector(NamedTuple):
    """Static part and shapes of a detector."""

    graph: Any
    """Static part, equal to that of the same detector with arrays."""
    params: dict[str, jax.ShapeDtypeStruct]
    """Shapes of the parameters by path."""
    stats: dict[str, jax.ShapeDtypeStruct]
    """Shapes of the moving statistics by path."""

    def module(self) -> Any:  # noqa: ANN401
        """Returns the detector with shapes instead of arrays."""
        return bind_detector(self.graph, self.params, self.stats)  # type: ignore[arg-type]


def abstract_detector(
    model: schema.Model, dtype: str, quantization: schema.Quantization | None = None
) -> AbstractDetector:
    """Describes the detector that `build_detector` would build; raises the same errors.

    `dtype` is that of activations and products, `float32` or `bfloat16`.
    """
    wanted = jax.numpy.dtype(dtype)
    detector = nnx.eval_shape(
        lambda: build_detector(model, dtype=wanted, rng=ShapesOnly(), quantization=quantization)
    )
    graph, params, stats = split_detector(detector)
    if len(params) > _MOST_ARRAYS:
        raise UserError(
            f"the model has {len(params):,} arrays of parameters, and at most {_MOST_ARRAYS:,} are "
            "possible",
            where="model",
            fix="take fewer layers, repetitions or feature maps",
        )
    return AbstractDetector(graph, params, stats)  # type: ignore[arg-type]
