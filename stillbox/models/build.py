"""Builds detectors from their configurations, as modules or as shapes and types.

Shapes and types are enough to trace and to compile without arrays.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from stillbox import models
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, import_all, registrations
from stillbox.lowering import lowering
from stillbox.models.detector import Detector
from stillbox.models.layers.hyperparams import ShapesOnly
from stillbox.models.parts import BuildOptions
from stillbox.models.variables import Shapes, Structure, bind_detector, split_detector

import_all(models.__name__, models.__path__)


def build_detector(
    model: schema.Model,
    *,
    seed: int = 0,
    dtype: DTypeLike = jnp.float32,
    rng: np.random.Generator | None = None,
    quantization: schema.Quantization | None = None,
) -> Detector:
    """Builds a detector with fresh weights.

    Args:
        model: its configuration.
        seed: of the weights.
        dtype: of activations and products, float32 or bfloat16; parameters are always float32.
        rng: draws the weights; None: one of the seed.
        quantization: `train.quantization` of the experiment.

    Raises:
        UserError: its parts do not fit each other, or one has no implementation.
    """
    rng = rng or np.random.default_rng(seed)
    options = BuildOptions(
        dtype,
        freeze_norm=False,
        rng=rng,
        quantization=quantization,
        image_channels=model.image_kind.channels,
    )
    # Shapes of maps are traced: all forms of an operation give the same, the plain one fastest.
    with lowering(portable=True):
        detector: Detector = implementation_of(model)(model, options)
    return detector


# SpineNet-190 has 985. Tracing takes some milliseconds for each.
_MOST_ARRAYS = 1600


class AbstractDetector(NamedTuple):
    """Static part and shapes of a detector."""

    graph: Structure[Detector]
    """Static part, equal to the part of the same detector with arrays."""
    params: Shapes
    """Shapes of the parameters by path."""
    stats: Shapes
    """Shapes of the moving statistics by path."""

    def module(self) -> Detector:
        """Returns the detector with shapes instead of arrays."""
        return bind_detector(self.graph, self.params, self.stats)


def abstract_detector(
    model: schema.Model, dtype: str, quantization: schema.Quantization | None = None
) -> AbstractDetector:
    """Describes the detector that `build_detector` would build; raises the same errors.

    `dtype` is of activations and products, `float32` or `bfloat16`.
    """
    return _described(model, dtype, quantization, registrations())


# A command asks for the same detector several times, and its layers take half a second to trace.
@lru_cache(maxsize=4)
def _described(
    model: schema.Model, dtype: str, quantization: schema.Quantization | None, _: int
) -> AbstractDetector:
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
