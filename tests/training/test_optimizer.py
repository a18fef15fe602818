"""Update rules against the original's executed values (fact sheet 3.9)."""

import jax.numpy as jnp
import numpy as np
import optax

from stillbox.experiment import schema
from stillbox.training.optimizer import build_optimizer

RATE = schema.ConstantSchedule(learning_rate=0.1)


def descend(train, start, steps):
    """Minimises v**2 / 2, whose gradient is v."""
    optimizer = build_optimizer(train)
    value = {"v": jnp.asarray(start)}
    state = optimizer.init(value)
    trace = []
    for _ in range(steps):
        updates, state = optimizer.update(value, state, value)
        value = optax.apply_updates(value, updates)
        trace.append(np.asarray(value["v"]))
    return np.array(trace)


def test_momentum_accumulates_gradients_and_applies_the_rate_afterwards():
    train = schema.Training(optimizer=schema.Momentum(schedule=RATE, momentum=0.9))
    # a = 1 -> v = .9; a = .9 + .9 = 1.8 -> v = .72; a = 1.62 + .72 = 2.34 -> v = .486
    np.testing.assert_allclose(
        descend(train, [1.0, 2.0], 3), [[0.9, 1.8], [0.72, 1.44], [0.486, 0.972]], rtol=1e-6
    )


def test_rms_prop_starts_its_mean_square_at_one_with_epsilon_inside_the_root():
    train = schema.Training(optimizer=schema.RmsProp(schedule=RATE))
    # ms = .9 + .1 = 1; update = .1 * 1 / sqrt(1 + 1) = .0707 -> .9293
    np.testing.assert_allclose(descend(train, [1.0], 3)[:, 0], [0.9293, 0.7997, 0.6259], atol=5e-5)


def test_adam_moves_by_the_rate_at_first():
    train = schema.Training(optimizer=schema.Adam(schedule=RATE))
    np.testing.assert_allclose(descend(train, [1.0], 1), [[0.9]], rtol=1e-6)


def test_clipping_scales_to_the_global_norm():
    train = schema.Training(
        optimizer=schema.Momentum(schedule=RATE, momentum=0.0), gradient_clip_norm=1.0
    )
    # |(3, 4)| = 5, so the gradient becomes (.6, .8)
    np.testing.assert_allclose(descend(train, [3.0, 4.0], 1), [[2.94, 3.92]], rtol=1e-6)
