"""One training step as one compiled program of fixed shape."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stillbox.experiment import schema
from stillbox.inputs.batch import Batch
from stillbox.models.parallel import whole
from stillbox.models.variables import Arrays, bind_detector, read_statistics
from stillbox.training.objective import MatchAverage, detection_loss
from stillbox.training.optimizer import build_optimizer
from stillbox.training.schedules import build_schedule
from stillbox.training.state import TrainState

Metrics = dict[str, jax.Array]
StepFunction = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def make_train_step(
    graph: Any,  # noqa: ANN401
    anchors: np.ndarray,
    model: schema.Model,
    train: schema.Training,
    trained: frozenset[str],
    *,
    replicas: int = 1,
) -> StepFunction:
    """Returns the function `(state, batch) -> (state, metrics)`, not yet compiled.

    A step whose loss, gradient or result is not finite leaves the state as it was, so that the
    caller can stop without having spoilt anything; `metrics["finite"]` says so.

    Args:
        graph: static part of the detector, from `split_detector`.
        anchors: `[A, 4]`, normalised to the network input.
        model: the detector's description.
        train: optimiser, averaging and regularisation.
        trained: paths of the parameters to change.
        replicas: equal parts of a batch, where the loss is normalised per replica.
    """
    optimizer = build_optimizer(train)
    schedule = build_schedule(train.optimizer.schedule)

    def loss_function(
        moving: Arrays,
        still: Arrays,
        stats: Arrays,
        batch: Batch,
        average: MatchAverage,
        key: jax.Array,
    ) -> tuple[jax.Array, tuple[Metrics, Arrays, jax.Array]]:
        detector = bind_detector(graph, {**moving, **still}, stats)
        predictions = detector(batch.images, train=True, dropout_key=key)
        parts = detection_loss(predictions, batch, anchors, model, average, replicas=replicas)
        penalty = detector.regularization() if train.regularization else jnp.zeros(())
        total = parts.classification + parts.localization + penalty
        metrics = {
            "loss": total,
            "classification_loss": parts.classification,
            "localization_loss": parts.localization,
            "regularization_loss": penalty,
            "matched_anchors": parts.matched_anchors,
        }
        return total, (metrics, read_statistics(detector), parts.average)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        moving = {path: array for path, array in state.params.items() if path in trained}
        still = {path: array for path, array in state.params.items() if path not in trained}
        key = jax.random.fold_in(jax.random.key(train.seed), state.step)
        gradient_function = jax.value_and_grad(loss_function, has_aux=True)
        average = MatchAverage(state.loss.get("matches", 0.0), state.step)
        (total, (metrics, stats, matches)), gradient = gradient_function(
            moving, still, state.stats, batch, average, key
        )
        # Sums over the whole batch; that the accumulators may be spread is no concern of them.
        gradient = whole(gradient)
        with jax.named_scope("update"):
            norm = optax.tree.norm(gradient)
            updates, accumulators = optimizer.update(gradient, state.optimizer, moving)
            params = {**still, **optax.apply_updates(moving, updates)}
            ema = _average(state.ema, params, state.step, train)
            averages = dict.fromkeys(state.loss, matches)
            after = TrainState(state.step + 1, params, stats, accumulators, ema, averages)
            # A huge rate makes infinite parameters of a sound gradient, huge activations an
            # infinite variance of a sound loss: what a checkpoint would hold has to be finite too.
            finite = jnp.isfinite(total) & jnp.isfinite(norm)
            finite &= jnp.isfinite(optax.tree.norm((updates, stats)))
            after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
        metrics |= {
            "learning_rate": schedule(state.step),
            "gradient_norm": norm,
            "finite": finite,
        }
        return after, metrics

    return step


def _average(ema: Arrays, params: Arrays, step: jax.Array, train: schema.Training) -> Arrays:
    if train.ema_decay is None:
        return ema
    decay = jnp.asarray(train.ema_decay, jnp.float32)
    if train.ema_warmup:
        # Otherwise the random start would outweigh all of the first 1 / (1 - decay) steps.
        decay = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return {path: decay * ema[path] + (1 - decay) * array for path, array in params.items()}
