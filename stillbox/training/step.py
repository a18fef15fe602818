"""One training step as one compiled program of fixed shape."""

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import optax

from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.models.detector import Detector
from stillbox.models.layers.lowering.reductions import norm_of
from stillbox.models.parallel import replicated
from stillbox.models.rematerialization import rematerialization
from stillbox.models.variables import Arrays, bind_detector, read_statistics
from stillbox.training.optimizer import build_optimizer
from stillbox.training.schedules import build_schedule
from stillbox.training.state import TrainState, average_parameters

Metrics = dict[str, jax.Array]
StepFunction = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def make_train_step(
    graph: Any,  # noqa: ANN401
    train: schema.Training,
    trainable: frozenset[str],
    *,
    replicas: int = 1,
) -> StepFunction:
    """Returns the function `(state, batch) -> (state, metrics)`, not yet compiled.

    If the loss, the gradient or the result is not finite, the state stays as it was and
    `metrics["finite"]` is false: the caller stops without a spoilt state.

    Args:
        graph: static part of the detector, from `split_detector`.
        train: optimiser, averaging and regularisation.
        trainable: paths of the parameters to change; the others are frozen.
        replicas: equal parts of a batch, if the loss is normalised per replica.
    """
    optimizer = build_optimizer(train)
    schedule = build_schedule(train.optimizer.schedule)

    def loss_function(
        params: Arrays, frozen: Arrays, state: TrainState, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, tuple[Metrics, Arrays, Arrays]]:
        detector: Detector = bind_detector(graph, {**params, **frozen}, state.stats)
        with rematerialization(train.rematerialization):
            loss = detector.loss(batch, state.loss, step=state.step, key=key, replicas=replicas)
        penalty = detector.regularization() if train.regularization else jnp.zeros(())
        total = reduce(add, loss.terms.values()) + penalty
        metrics = {"loss": total, **loss.terms, "regularization_loss": penalty, **loss.metrics}
        return total, (metrics, read_statistics(detector), loss.state)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        params = {path: array for path, array in state.params.items() if path in trainable}
        frozen = {path: array for path, array in state.params.items() if path not in trainable}
        key = jax.random.fold_in(jax.random.key(train.seed), state.step)

        # ---- loss and gradient ----
        gradient_function = jax.value_and_grad(loss_function, has_aux=True)
        (total, (metrics, stats, loss_state)), gradient = gradient_function(
            params, frozen, state, batch, key
        )
        # The gradient is a sum over the whole batch and replicated; accumulators may be sharded.
        gradient = replicated(gradient)

        # ---- update ----
        with jax.named_scope("update"):
            norm = norm_of(jax.tree.leaves(gradient))
            updates, accumulators = optimizer.update(gradient, state.optimizer, params)
            updated = {**frozen, **optax.apply_updates(params, updates)}
            ema = average_parameters(state.ema, updated, state.step, train)
            after = TrainState(state.step + 1, updated, stats, accumulators, ema, loss_state)
            # A huge rate makes infinite parameters of a finite gradient, huge activations an
            # infinite variance of a finite loss; a checkpoint may hold neither.
            finite = jnp.isfinite(total) & jnp.isfinite(norm)
            finite &= jnp.isfinite(norm_of(jax.tree.leaves((updates, stats))))
            after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
        metrics |= {
            "learning_rate": schedule(state.step),
            "gradient_norm": norm,
            "finite": finite,
        }
        return after, metrics

    return step
