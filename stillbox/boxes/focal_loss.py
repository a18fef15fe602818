"""The focal loss (arXiv:1708.02002), computed in float32 whatever comes in (fact sheet 3.6).

RetinaNet has millions of logits an image, and a step computes this loss and its gradient of every
one. Derived automatically, the gradient either keeps five arrays as large as the logits or takes
as long as the loss all over again; written out, it keeps the logits and needs one power.
"""

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

    `p_t` is the probability that the model gives to the truth. No gradient flows into `targets`.

    Args:
        logits: `[...]`.
        targets: `[...]`, in 0..1.
        gamma: 0 leaves plain cross entropy.
        alpha: weight of positive targets, `1 - alpha` that of negative ones; None weighs neither.
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
    """Returns the focal loss of each anchor, weighted and summed over the classes.

    Args:
        logits: `[..., A, C]`.
        targets: `[..., A, C]`.
        weights: `[..., A]` or `[..., A, C]`.
        gamma: as for `sigmoid_focal_cross_entropy`.
        alpha: as there.
    """
    losses = sigmoid_focal_cross_entropy(logits, targets, gamma=gamma, alpha=alpha)
    # XLA vectorises exponentials in a loop over elements on CPUs, but not inside a sum.
    losses = jax.lax.platform_dependent(
        losses, cpu=jax.lax.optimization_barrier, default=lambda array: array
    )
    return weighted_sum(losses, weights)


class _Parts(NamedTuple):
    """What loss and gradient have in common, elementwise."""

    probability: Array
    """s(x), of the class."""
    complement: Array
    """s(-x), with all of its digits."""
    entropy: Array
    """-t log s(x) - (1 - t) log s(-x)."""
    doubt: Array
    """t s(-x) + (1 - t) s(x), which is 1 - p_t."""
    alpha: Array | float
    """Weight of the element."""


def _parts(logits: Array, targets: Array, alpha: float | None) -> _Parts:
    # One exponential, of a number that is never above 0, serves everything.
    decay = jnp.exp(-jnp.abs(logits))
    larger = 1.0 / (1.0 + decay)
    smaller = decay * larger
    positive = logits >= 0.0
    probability = jnp.where(positive, larger, smaller)
    complement = jnp.where(positive, smaller, larger)
    # Not 1 - p_t: the difference would lose every digit for a confident model. The floor keeps the
    # power finite at 0 when its exponent is negative.
    doubt = jnp.maximum(targets * complement + (1.0 - targets) * probability, _TINY)
    return _Parts(
        probability,
        complement,
        entropy=jnp.maximum(logits, 0.0) - logits * targets + jnp.log1p(decay),
        doubt=doubt,
        alpha=1.0 if alpha is None else targets * alpha + (1.0 - targets) * (1.0 - alpha),
    )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _focal(logits: Array, targets: Array, gamma: float, alpha: float | None) -> Array:
    """Returns the loss of arrays of one shape."""
    parts = _parts(logits, targets, alpha)
    return parts.alpha * parts.entropy * parts.doubt**gamma


def _focal_forward(
    logits: Array, targets: Array, gamma: float, alpha: float | None
) -> tuple[Array, tuple[Array, Array]]:
    return _focal(logits, targets, gamma, alpha), (logits, targets)


def _focal_backward(
    gamma: float, alpha: float | None, kept: tuple[Array, Array], cotangent: Array
) -> tuple[Array, None]:
    logits, targets = kept
    # Otherwise the compiler finds that forward has computed the same parts, and keeps them all.
    logits = jax.lax.optimization_barrier(logits)
    parts = _parts(logits, targets, alpha)
    # d entropy / dx = s(x) - t, and d doubt / dx = (1 - 2 t) s(x) s(-x).
    of_entropy = parts.doubt * (parts.probability - targets)
    of_doubt = (1.0 - 2.0 * targets) * parts.probability * parts.complement
    slope = parts.doubt ** (gamma - 1.0) * (of_entropy + gamma * parts.entropy * of_doubt)
    return cotangent * parts.alpha * slope, None


_focal.defvjp(_focal_forward, _focal_backward)
