"""Activation functions by the schema's names."""

from collections.abc import Callable

import jax

Activation = Callable[[jax.Array], jax.Array]


def _identity(x: jax.Array) -> jax.Array:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "none": _identity,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "swish": jax.nn.swish,
}
