"""Calibration: from scores to probabilities, for all class slots or for some."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def curve_scores(scores: ArrayLike, *, inputs: ArrayLike, outputs: ArrayLike) -> Array:
    """Interpolates scores `[...]` linearly between points; constant beyond the outer points.

    `inputs` `[P]` are rising, `outputs` `[P]` are the calibrated scores there.
    """
    return jnp.interp(
        jnp.asarray(scores, jnp.float32),
        jnp.asarray(inputs, jnp.float32),
        jnp.asarray(outputs, jnp.float32),
    )


def class_curve_scores(
    scores: ArrayLike, *, slots: ArrayLike, inputs: ArrayLike, outputs: ArrayLike
) -> Array:
    """Interpolates the scores `[..., C]` of distinct `slots` `[S]` int, each by its own curve.

    Args:
        scores: `[..., C]`.
        slots: `[S]`; other slots are not changed.
        inputs: `[S, P]`, rising in each row; shorter curves repeat their last point.
        outputs: `[S, P]`.
    """
    scores, slots = jnp.asarray(scores, jnp.float32), jnp.asarray(slots)
    inputs, outputs = jnp.asarray(inputs, jnp.float32), jnp.asarray(outputs, jnp.float32)
    by_slot = jax.vmap(jnp.interp, in_axes=(-1, 0, 0), out_axes=-1)
    return scores.at[..., slots].set(by_slot(scores[..., slots], inputs, outputs))


def platt_scores(scores: ArrayLike, *, a: ArrayLike, b: ArrayLike) -> Array:
    """Returns `1 / (1 + exp(a score + b))`, Platt's scaling, of `[..., C]`; a, b: `[]` or `[C]`."""
    return jax.nn.sigmoid(-(jnp.asarray(scores, jnp.float32) * a + b))


def class_platt_scores(scores: ArrayLike, *, slots: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """Applies Platt's scaling with `a` and `b` `[S]` to distinct `slots` `[S]` of `[..., C]`."""
    scores, slots = jnp.asarray(scores, jnp.float32), jnp.asarray(slots)
    a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    return scores.at[..., slots].set(platt_scores(scores[..., slots], a=a, b=b))
