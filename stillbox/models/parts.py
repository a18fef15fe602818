"""What backbones, necks and heads have in common."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx


class Part(nnx.Module):
    """A backbone, neck or head: layers as attributes, named like the parameters' paths."""


@dataclass(frozen=True)
class BuildOptions:
    """What all layers of one detector share while it is built."""

    dtype: Any
    """Type of activations and products."""
    freeze_norm: bool
    """Batch norm uses its moving statistics in training too."""
    rng: np.random.Generator
    """Draws the kernels; it advances from layer to layer."""

    def layer_arguments(self) -> dict[str, Any]:
        """The same as keyword arguments of a layer."""
        return {"dtype": self.dtype, "freeze_norm": self.freeze_norm, "rng": self.rng}
