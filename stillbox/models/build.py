"""Builds detectors from their configurations."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.detector import Detector
from stillbox.models.one_stage import detector as _one_stage  # noqa: F401 - registers it
from stillbox.models.parts import BuildOptions
from stillbox.models.two_stage import detector as _two_stage  # noqa: F401 - registers it


def build_detector(
    model: schema.Model,
    *,
    seed: int = 0,
    dtype: Any = jnp.float32,  # noqa: ANN401
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
    options = BuildOptions(dtype, freeze_norm=False, rng=rng, quantization=quantization)
    detector: Detector = implementation_of(model)(model, options)
    return detector
