"""Calibration: from scores to probabilities, one slot of the class axis at a time or all alike."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def curve_scores(scores: ArrayLike, *, inputs: ArrayLike, outputs: ArrayLike) -> Array:
    """Maps scores by straight lines between points, and by the outer points beyond them.

    Args:
        scores: `[...]`.
        inputs: `[P]`, rising.
        outputs: `[P]`, what scores of `inputs` become.
    """
    return jnp.interp(
        jnp.asarray(scores, jnp.float32),
        jnp.asarray(inputs, jnp.float32),
        jnp.asarray(outputs, jnp.float32),
    )


def class_curve_scores(
    scores: ArrayLike, *, slots: ArrayLike, inputs: ArrayLike, outputs: ArrayLike
) -> Array:
    """Maps the scores of some class slots by a curve for each; the others stay.

    Args:
        scores: `[..., C]`.
        slots: `[S]` int, the slots that have a curve, each once.
        inputs: `[S, P]`, rising in each row; shorter curves repeat their last point.
        outputs: `[S, P]`.
    """
    scores, slots = jnp.asarray(scores, jnp.float32), jnp.asarray(slots)
    inputs, outputs = jnp.asarray(inputs, jnp.float32), jnp.asarray(outputs, jnp.float32)
    by_slot = jax.vmap(jnp.interp, in_axes=(-1, 0, 0), out_axes=-1)
    return scores.at[..., slots].set(by_slot(scores[..., slots], inputs, outputs))


def platt_scores(scores: ArrayLike, *, a: ArrayLike, b: ArrayLike) -> Array:
    """Returns `1 / (1 + exp(a score + b))`, Platt's scaling.

    Args:
        scores: `[..., C]`.
        a: a number, or `[C]`.
        b: likewise.
    """
    return jax.nn.sigmoid(-(jnp.asarray(scores, jnp.float32) * a + b))


def class_platt_scores(scores: ArrayLike, *, slots: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """Applies Platt's scaling to some class slots, with numbers for each; the others stay.

    Args:
        scores: `[..., C]`.
        slots: `[S]` int, the slots that have numbers, each once.
        a: `[S]`.
        b: `[S]`.
    """
    scores, slots = jnp.asarray(scores, jnp.float32), jnp.asarray(slots)
    a, b = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    return scores.at[..., slots].set(platt_scores(scores[..., slots], a=a, b=b))
