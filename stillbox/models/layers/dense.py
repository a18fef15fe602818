"""Fully connected layers."""

from typing import Any

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.models.layers.conv import ConvLayer


class Dense(ConvLayer):
    """Fully connected layer with bias or normalisation, activation and penalty.

    Args:
        inputs: numbers of a row of the input.
        channels: numbers of a row of the output.
        hyperparams: as for `ConvLayer`.
        options: as for `ConvLayer`.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        hyperparams: schema.ConvHyperparams,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__((inputs, channels), channels, 1, hyperparams, **options)

    def __call__(self, x: jax.Array, *, train: bool, site: int = 0) -> jax.Array:
        """Maps `[N, C]` to `[N, D]`."""
        with jax.named_scope(self.scope):
            product = jnp.matmul(
                x.astype(self.dtype),
                self.kernel[...].astype(self.dtype),
                preferred_element_type=jnp.float32,
            )
        # Normalisation expects rows and columns.
        return self._finish(product[:, None, None], train=train)[:, 0, 0]
