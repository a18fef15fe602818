"""The focal loss (arXiv:1708.02002), computed in float32 for any input type.

RetinaNet has millions of logits an image, and a step computes this loss and its gradient for every
one. Derived automatically, the gradient either keeps five arrays as large as the logits or takes as
long as the loss again; the explicit one keeps the logits and needs one power.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from stillbox.boxes.losses import weighted_sum

# Far below any probability that float32 logits can express, far above float32's smallest number.
_TINY = 1e-30


def sigmoid_focal_cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, gamma: float, alpha: float | None
) -> Array:
    """Returns binary cross entropy times `(1 - p_t)^gamma * alpha_t`, elementwise.

    `p_t` is the predicted probability of the target. No gradient flows into `targets`.

    Args:
        logits: `[...]`.
        targets: `[...]`, in 0..1.
        gamma: 0 is plain cross entropy.
        alpha: weight of positive targets, `1 - alpha` that of negative ones; None: both 1.
    """
    arrays = jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32)
    return _focal(*jnp.broadcast_arrays(*arrays), gamma, alpha)


def sigmoid_focal_loss(
    logits: ArrayLike,
    targets: ArrayLike,
    weights: ArrayLike,
    *,
    gamma: float = 2.0,
    alpha: float | None = None,
) -> Array:
    """Returns `[..., A]`, weighted by `[..., A]` or `[..., A, C]` and summed over the classes."""
    losses = sigmoid_focal_cross_entropy(logits, targets, gamma=gamma, alpha=alpha)
    return weighted_sum(losses, weights)


class _Parts(NamedTuple):
    """Common terms of loss and gradient, elementwise."""

    probability: Array
    """s(x), of the class."""
    complement: Array
    """s(-x), with all of its digits."""
    entropy: Array
    """-t log s(x) - (1 - t) log s(-x)."""
    mistake: Array
    """t s(-x) + (1 - t) s(x), which is 1 - p_t."""
    alpha: Array | float
    """Weight of the element."""


def _parts(logits: Array, targets: Array, alpha: float | None) -> _Parts:
    # One exponential of a number that is never above 0.
    decay = jnp.exp(-jnp.abs(logits))
    larger = 1.0 / (1.0 + decay)
    smaller = decay * larger
    positive = logits >= 0.0
    probability = jnp.where(positive, larger, smaller)
    complement = jnp.where(positive, smaller, larger)
    # Not 1 - p_t, which would lose all digits near 0. The floor keeps a power with a negative
    # exponent finite at 0.
    mistake = jnp.maximum(targets * complement + (1.0 - targets) * probability, _TINY)
    return _Parts(
        probability,
        complement,
        entropy=jnp.maximum(logits, 0.0) - logits * targets + jnp.log1p(decay),
        mistake=mistake,
        alpha=1.0 if alpha is None else targets * alpha + (1.0 - targets) * (1.0 - alpha),
    )


def _power(base: Array, exponent: float) -> Array:
    """Returns a power of positive numbers.

    An exponent that ends in .5 becomes a product with a square root: on a CPU, XLA's general power
    is a function call for every element.
    """
    whole = math.floor(exponent)
    if exponent - whole == 0.5:
        return base**whole * jnp.sqrt(base)
    return base**exponent


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _focal(logits: Array, targets: Array, gamma: float, alpha: float | None) -> Array:
    """Returns the loss of arrays of one shape."""
    parts = _parts(logits, targets, alpha)
    return parts.alpha * parts.entropy * _power(parts.mistake, gamma)


def _focal_forward(
    logits: Array, targets: Array, gamma: float, alpha: float | None
) -> tuple[Array, tuple[Array, Array]]:
    return _focal(logits, targets, gamma, alpha), (logits, targets)


def _focal_backward(
    gamma: float, alpha: float | None, kept: tuple[Array, Array], cotangent: Array
) -> tuple[Array, None]:
    logits, targets = kept
    # Without the barrier, the compiler would reuse, and so keep, the terms of the forward pass.
    logits = jax.lax.optimization_barrier(logits)
    parts = _parts(logits, targets, alpha)
    # d entropy / dx = s(x) - t, and d mistake / dx = (1 - 2 t) s(x) s(-x).
    of_entropy = parts.mistake * (parts.probability - targets)
    of_mistake = (1.0 - 2.0 * targets) * parts.probability * parts.complement
    slope = _power(parts.mistake, gamma - 1.0) * (of_entropy + gamma * parts.entropy * of_mistake)
    return cotangent * parts.alpha * slope, None


_focal.defvjp(_focal_forward, _focal_backward)
