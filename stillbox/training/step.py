"""One training step of fixed shape: the gradient of a batch, in parts if asked, and the update."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import optax

from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.models.detector import Detector, LossInputs
from stillbox.models.layers.lowering.primitives import norm_of
from stillbox.models.parallel import replicated
from stillbox.models.rematerialization import set_rematerialization
from stillbox.models.variables import Arrays, Structure, bind_detector, read_statistics
from stillbox.training.distillation import TeacherArrays, teach
from stillbox.training.optimizer import build_optimizer, build_schedule
from stillbox.training.state import TrainState, average_parameters, averaged_arrays

Metrics = dict[str, jax.Array]


class Piece(NamedTuple):
    """The input of the loss beside the parameters, for a batch or a part of it."""

    batch: Batch
    stats: Arrays
    """Moving statistics by path, before it."""
    key: jax.Array
    """For all random numbers."""
    divisors: Mapping[str, jax.Array] | None = None
    """`LossOutput.divisors` of the whole; None: of these images."""


class Seen(NamedTuple):
    """The output of the loss beside its value."""

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

    `parts` is the number of micro-batches, which divides B; 1: there is no loop. A micro-batch is
    every n-th image, so that each device and each replica has an equal part of it. A `lax.scan`
    over them keeps the activations of one.

    Terms of a loss are divided by sums over images, such as the number of matches. A first pass
    collects the sums of the whole batch, and the second one divides by them; with divisors, the
    objectives of the pieces add up to the objective of the whole. Where the sums follow from the
    ground truth, the compiler removes the network from the first pass. Batch norm takes the
    statistics of a micro-batch, and moving ones move once a micro-batch.
    """
    gradient_of = jax.value_and_grad(objective, has_aux=True)
    if parts == 1:
        (_, seen), gradient = gradient_of(params, whole)
        return gradient, seen
    numbers, piece_of = jnp.arange(parts), partial(_piece, whole, parts)

    def count(stats: Arrays, number: jax.Array) -> tuple[Arrays, Mapping[str, jax.Array]]:
        _, seen = objective(params, piece_of(number, stats))
        return seen.stats, dict(seen.divisors)

    def add_piece(
        carry: tuple[Arrays, Arrays], number: jax.Array
    ) -> tuple[tuple[Arrays, Arrays], Seen]:
        summed, stats = carry
        (_, seen), gradient = gradient_of(params, piece_of(number, stats, divisors))
        summed = replicated(jax.tree.map(jnp.add, summed, gradient))
        return (summed, seen.stats), seen._replace(stats={}, divisors={})

    divisors = _summed(jax.lax.scan(count, whole.stats, numbers)[1])
    zeros = jax.tree.map(jnp.zeros_like, params)
    (gradient, stats), seen = jax.lax.scan(add_piece, (zeros, whole.stats), numbers)
    # The last part has the state of the loss: from the divisors of the whole, or from this part.
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
    return {name: jnp.sum(parts, axis=0) for name, parts in values.items()}


class StepFunction(Protocol):
    """One training step."""

    def __call__(
        self, state: TrainState, batch: Batch, teacher: TeacherArrays | None = None, /
    ) -> tuple[TrainState, Metrics]:
        """Returns the state after a batch, and its metrics; a run with a teacher gives its."""


@dataclass(frozen=True)
class _Loss:
    """The loss of a model for the parameters of a state and a part of a batch."""

    graph: Structure[Detector]
    train: schema.Training
    replicas: int
    teacher_graph: Structure[Detector] | None

    def __call__(
        self, state: TrainState, teacher: TeacherArrays | None, params: Arrays, piece: Piece
    ) -> tuple[jax.Array, Seen]:
        """Returns the loss, a scalar, and what was seen; `params` replace parameters of `state`."""
        train = self.train
        detector: Detector = bind_detector(self.graph, {**state.params, **params}, piece.stats)
        set_rematerialization(detector, train.rematerialization)
        taught = teach(self.teacher_graph, teacher, piece.batch, train.distillation)
        batch, _, key, divisors = piece
        loss = detector.loss(
            LossInputs(batch, state.loss, state.step, key, self.replicas, taught, divisors)
        )
        parts = train.accumulation_steps
        share = 1.0 if loss.divisors else 1.0 / parts
        terms = {name: share * term for name, term in loss.terms.items()}
        penalty = detector.regularization() / parts if train.regularization else jnp.zeros(())
        total = reduce(add, terms.values()) + penalty
        metrics = {"loss": total, **terms, "regularization_loss": penalty, **loss.metrics}
        return total, Seen(metrics, read_statistics(detector), loss.state, loss.divisors)


def _updated(
    optimizer: optax.GradientTransformation,
    train: schema.Training,
    state: TrainState,
    params: Arrays,
    gradient: Arrays,
    seen: Seen,
) -> tuple[TrainState, Metrics]:
    """Returns the state after a gradient of `params`, or before it if not all is finite."""
    norm = norm_of(jax.tree.leaves(gradient))
    updates, accumulators = optimizer.update(gradient, state.optimizer, params)
    updated = {**state.params, **cast(Arrays, optax.apply_updates(params, updates))}
    averaged = averaged_arrays(updated, seen.stats, train)
    ema = average_parameters(state.ema, averaged, state.step, train)
    after = TrainState(state.step + 1, updated, seen.stats, accumulators, ema, seen.loss)
    # A huge rate makes infinite parameters from a finite gradient. Huge activations make an
    # infinite variance despite a finite loss. No checkpoint may contain either.
    finite = jnp.isfinite(seen.metrics["loss"]) & jnp.isfinite(norm)
    finite &= jnp.isfinite(norm_of(jax.tree.leaves((replicated(updates), seen.stats))))
    after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
    return after, {"gradient_norm": norm, "finite": finite}


def make_train_step(
    graph: Structure[Detector],
    train: schema.Training,
    trainable: frozenset[str],
    *,
    replicas: int = 1,
    teacher_graph: Structure[Detector] | None = None,
    backbone_layers: Sequence[str] = (),
) -> StepFunction:
    """Returns the function `(state, batch) -> (state, metrics)`, not yet compiled.

    If the loss, the gradient or the result is not finite, the state is unchanged and
    `metrics["finite"]` is false. The caller stops with the last valid state.

    Args:
        trainable: paths of the parameters to change; the others are frozen.
        replicas: equal parts of a batch, if the loss is normalised per replica.
        teacher_graph: static part of the teacher that `train.distillation` names; the function
            then takes the teacher's arrays too.
        backbone_layers: `Backbone.layers` of the model, for `backbone_layer_decay`.
    """
    optimizer = build_optimizer(train, backbone_layers)
    schedule = build_schedule(train.optimizer.schedule)
    loss = _Loss(graph, train, replicas, teacher_graph)

    def step(
        state: TrainState, batch: Batch, teacher: TeacherArrays | None = None, /
    ) -> tuple[TrainState, Metrics]:
        params = {path: array for path, array in state.params.items() if path in trainable}
        key = jax.random.fold_in(jax.random.key(train.seed), state.step)
        gradient, seen = accumulated_gradient(
            partial(loss, state, teacher),
            params,
            Piece(batch, state.stats, key),
            train.accumulation_steps,
        )
        # The gradient is a sum over the whole batch and replicated; accumulators may be sharded.
        gradient = replicated(gradient)
        with jax.named_scope("update"):
            after, figures = _updated(optimizer, train, state, params, gradient, seen)
        return after, seen.metrics | {"learning_rate": schedule(state.step)} | figures

    return step
