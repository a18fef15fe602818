"""The training state, and the moving average of its parameters."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from stillbox.experiment import schema
from stillbox.models.layers.lowering.primitives import computed_once
from stillbox.models.variables import Arrays
from stillbox.training.optimizer import build_optimizer


class TrainState(NamedTuple):
    """The input and output of a step, stored in checkpoints."""

    step: jax.Array
    """int32 scalar, updates done so far; the position in the data follows from it."""
    params: Arrays
    """Parameters by path, float32, frozen ones included."""
    stats: Arrays
    """Moving statistics of batch norm by path, float32."""
    optimizer: optax.OptState
    """Accumulators of the trainable parameters."""
    ema: Arrays
    """Moving average of the parameters by path, and of the statistics with `ema_statistics`; empty
    without one."""
    loss: Arrays
    """Moving average of the matches that the loss is divided by; empty without one."""


def create_state(
    params: Arrays, stats: Arrays, train: schema.Training, trainable: frozenset[str], loss: Arrays
) -> TrainState:
    """Returns the state before the first step.

    `trainable` are the paths of the parameters that training changes, `loss` is
    `Detector.initial_loss_state`.
    """
    optimizer = build_optimizer(train).init({path: params[path] for path in sorted(trainable)})
    averaged = averaged_arrays(params, stats, train)
    ema = _first_average(averaged, train, trainable) if train.ema_decay is not None else {}
    return TrainState(jnp.zeros((), jnp.int32), params, stats, optimizer, ema, loss)


def _first_average(params: Arrays, train: schema.Training, trainable: frozenset[str]) -> Arrays:
    # The original averages trainable parameters only; a frozen parameter is its own average. Others
    # are copied, because the step donates its input buffers and may donate each of them once.
    zeroed = trainable if train.ema_from_zero else frozenset()
    return {
        path: jnp.zeros_like(array) if path in zeroed else jnp.copy(array)
        for path, array in params.items()
    }


def averaged_arrays(params: Arrays, stats: Arrays, train: schema.Training) -> Arrays:
    """Returns the arrays that a moving average follows."""
    return params | stats if train.ema_statistics else params


def arrays_to_score(state: TrainState, *, use_ema: bool) -> tuple[Arrays, Arrays]:
    """Returns the parameters and the moving statistics that are scored."""
    if not (use_ema and state.ema):
        return state.params, state.stats
    params = {path: state.ema[path] for path in state.params}
    return params, {path: state.ema.get(path, array) for path, array in state.stats.items()}


def average_parameters(
    ema: Arrays, params: Arrays, step: jax.Array, train: schema.Training
) -> Arrays:
    """Returns the moving average after a step; empty without one.

    `ema` is the average before the step, `params` are the parameters after it, and `step` is an
    int32 scalar, the updates before it.
    """
    if train.ema_decay is None:
        return ema
    decay = computed_once(partial(_decay_at, highest=train.ema_decay, train=train))(step)
    return {path: decay * ema[path] + (1 - decay) * array for path, array in params.items()}


def _decay_at(step: jax.Array, *, highest: float, train: schema.Training) -> jax.Array:
    """Returns the share of the average that a step keeps."""
    decay = jnp.asarray(highest, jnp.float32)
    if train.ema_warmup:
        # Otherwise the first value would outweigh all of the first 1 / (1 - decay) steps.
        counted = step + (1.0 if train.ema_from_zero else 0.0)
        decay = jnp.minimum(decay, (1.0 + counted) / (10.0 + counted))
    if train.ema_tau:
        decay *= -jnp.expm1(-(step + 1.0) / train.ema_tau)
    if train.ema_copy_first:
        decay = jnp.where(step == 0, 0.0, decay)
    if train.ema_interval > 1:
        decay = jnp.where(step % train.ema_interval == 0, decay, 1.0)
    return decay
