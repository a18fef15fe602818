"""Everything that a training step changes."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.variables import Arrays
from stillbox.textformat.name_patterns import found_in
from stillbox.training.optimizer import build_optimizer


class TrainState(NamedTuple):
    """The value that goes into a step and comes out of it, and that a checkpoint holds."""

    step: jax.Array
    """int32 scalar, updates done so far; the position in the data follows from it."""
    params: Arrays
    """Parameters by path, float32, frozen ones included."""
    stats: Arrays
    """Moving statistics of batch norm by path, float32."""
    optimizer: optax.OptState
    """Accumulators of the trainable parameters."""
    ema: Arrays
    """Moving average of the parameters by path; empty where none is kept."""
    loss: Arrays
    """Moving average of the matches that the loss is divided by; empty where none is kept."""


def create_state(
    params: Arrays,
    stats: Arrays,
    train: schema.Training,
    trainable: frozenset[str],
    loss: Arrays,
) -> TrainState:
    """Returns the state before the first step.

    Args:
        params: parameters by path.
        stats: moving statistics by path.
        train: optimiser and averaging.
        trainable: paths of the parameters that training changes.
        loss: `Detector.initial_loss_state`.
    """
    optimizer = build_optimizer(train).init({path: params[path] for path in sorted(trainable)})
    ema = _first_average(params, train, trainable) if train.ema_decay is not None else {}
    return TrainState(jnp.zeros((), jnp.int32), params, stats, optimizer, ema, loss)


def _first_average(params: Arrays, train: schema.Training, trainable: frozenset[str]) -> Arrays:
    # The original averages what it trains alone; a frozen parameter is its own average. Others are
    # copied, because the step gives its input buffers away and may not give one away twice.
    zeroed = trainable if train.ema_from_zero else frozenset()
    return {
        path: jnp.zeros_like(array) if path in zeroed else jnp.copy(array)
        for path, array in params.items()
    }


def average_parameters(
    ema: Arrays, params: Arrays, step: jax.Array, train: schema.Training
) -> Arrays:
    """Returns the moving average after a step; empty where none is kept.

    Args:
        ema: the average before, by path.
        params: parameters after the step, by path.
        step: int32 scalar, updates before the step.
        train: decay and warm-up of the average.
    """
    if train.ema_decay is None:
        return ema
    decay = jnp.asarray(train.ema_decay, jnp.float32)
    if train.ema_warmup:
        # Otherwise the first value would outweigh all of the first 1 / (1 - decay) steps.
        counted = step + (1.0 if train.ema_from_zero else 0.0)
        decay = jnp.minimum(decay, (1.0 + counted) / (10.0 + counted))
    return {path: decay * ema[path] + (1 - decay) * array for path, array in params.items()}


def select_trainable(
    paths: Iterable[str], reference_names: Mapping[str, str], train: schema.Training
) -> frozenset[str]:
    """Returns the paths of the parameters that training may change.

    A pattern is searched for in our path and in the name that the parameter has in the original's
    checkpoints, because `freeze_variables` in a `pipeline.config` speaks of the latter.

    Raises:
        UserError: a pattern matches nothing, or nothing is left to train.
    """
    paths = frozenset(paths)
    trainable = paths
    if train.trainable:
        trainable = _matching(paths, reference_names, train.trainable, "train.trainable")
    if train.freeze:
        trainable -= _matching(paths, reference_names, train.freeze, "train.freeze")
    if not trainable:
        raise UserError(
            "no parameter is left to train",
            where="train.freeze, train.trainable",
            fix="freeze fewer: for example --set 'train.freeze=[^backbone]'",
        )
    return trainable


def _matching(
    paths: frozenset[str], names: Mapping[str, str], patterns: Iterable[str], where: str
) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    named = {path: names.get(path, "") for path in paths}
    for pattern, matches in found_in(patterns, named, where):
        if not matches:
            raise UserError(
                f"the pattern {pattern!r} matches no parameter",
                where=where,
                fix=f"paths look like {', '.join(sorted(paths)[:3])}",
            )
        found |= matches
    return found
