"""Activation functions by the schema's names."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Activation = Callable[[jax.Array], jax.Array]


@jax.custom_jvp
def relu6(x: jax.Array) -> jax.Array:
    """Clips to 0..6; the gradient at either end is 0, as TF's."""
    return jnp.clip(x, 0, 6)


@relu6.defjvp
def _relu6_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    return relu6(x), jnp.where((x > 0) & (x < 6), tangent, jnp.zeros_like(tangent))


def hard_swish(x: jax.Array) -> jax.Array:
    """Returns `x * relu6(x + 3) / 6` (arXiv:1905.02244, 5.2)."""
    return x * relu6(x + 3) * (1 / 6)


def _identity(x: jax.Array) -> jax.Array:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "none": _identity,
    "relu": jax.nn.relu,
    "relu6": relu6,
    "swish": jax.nn.swish,
    "hard_swish": hard_swish,
}
