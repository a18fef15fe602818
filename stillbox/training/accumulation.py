"""Gradient accumulation: the gradient of a batch as the sum of those of its micro-batches.

A micro-batch is every n-th image of the batch. Each device therefore has an equal part of it where
the batch is, and so has each replica. The micro-batches follow each other in a `lax.scan`, which
keeps the activations of one of them.

Terms of a loss are divided by sums over images, such as the number of matches. A first pass
collects these sums from all micro-batches, and the second one divides by those of the whole batch,
which makes the gradient that of the whole batch. Where the sums follow from the ground truth, the
compiler removes the network from the first pass. Statistics of batch norm are those of a
micro-batch, and moving ones move once a micro-batch.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stillbox.boxes.structures import Batch
from stillbox.models.parallel import replicated
from stillbox.models.variables import Arrays

Metrics = dict[str, jax.Array]


class Piece(NamedTuple):
    """What the loss of a batch, or of a part of it, follows from beside the parameters."""

    batch: Batch
    stats: Arrays
    """Moving statistics by path, before it."""
    key: jax.Array
    """For everything random."""
    divisors: Mapping[str, jax.Array] | None = None
    """`LossOutput.divisors` of the whole; None: of these images."""


class Seen(NamedTuple):
    """What the loss says beside its value."""

    metrics: Metrics
    stats: Arrays
    """Moving statistics by path, after it."""
    loss: Arrays
    """State of the loss, after it."""
    divisors: Mapping[str, jax.Array]
    """`LossOutput.divisors` of these images."""


Objective = Callable[[Arrays, Piece], tuple[jax.Array, Seen]]
"""From parameters `{path: array}` and a piece to the loss, a scalar, and what was seen."""


def accumulated_gradient(
    objective: Objective, params: Arrays, whole: Piece, parts: int
) -> tuple[Arrays, Seen]:
    """Returns the gradient of a batch of B images, and its metrics.

    `parts` is the number of micro-batches, which divides B; 1: there is no loop. With divisors, the
    objectives of the pieces add up to that of the whole.
    """
    gradient_of = jax.value_and_grad(objective, has_aux=True)
    if parts == 1:
        (_, seen), gradient = gradient_of(params, whole)
        return gradient, seen
    numbers, piece_of = jnp.arange(parts), partial(_piece, whole, parts)

    def count(stats: Arrays, number: jax.Array) -> tuple[Arrays, Mapping[str, jax.Array]]:
        _, seen = objective(params, piece_of(number, stats))
        return seen.stats, dict(seen.divisors)

    def add(carry: tuple[Arrays, Arrays], number: jax.Array) -> tuple[tuple[Arrays, Arrays], Seen]:
        summed, stats = carry
        (_, seen), gradient = gradient_of(params, piece_of(number, stats, divisors))
        summed = replicated(jax.tree.map(jnp.add, summed, gradient))
        return (summed, seen.stats), seen._replace(stats={}, divisors={})

    divisors = _summed(jax.lax.scan(count, whole.stats, numbers)[1])
    zeros = jax.tree.map(jnp.zeros_like, params)
    (gradient, stats), seen = jax.lax.scan(add, (zeros, whole.stats), numbers)
    # The state of the loss follows from divisors of the whole, or else is that of the last part.
    loss = {name: values[-1] for name, values in seen.loss.items()}
    return gradient, Seen(_summed(seen.metrics), stats, loss, divisors)


def _piece(
    whole: Piece,
    parts: int,
    number: jax.Array,
    stats: Arrays,
    divisors: Mapping[str, jax.Array] | None = None,
) -> Piece:

    def rows(array: jax.Array) -> jax.Array:
        divided = array.reshape(-1, parts, *array.shape[1:])
        return jax.lax.dynamic_index_in_dim(divided, number, axis=1, keepdims=False)

    batch = jax.tree.map(rows, whole.batch)
    return Piece(batch, stats, jax.random.fold_in(whole.key, number), divisors)


def _summed(values: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.sum(one, axis=0) for name, one in values.items()}
