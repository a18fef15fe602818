"""Metrics are looked at one step late, and the first that is not finite ends the run."""

import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.training.guard import MetricsGuard, NonFiniteLossError


def metrics(loss, finite=True):
    return {"loss": jnp.float32(loss), "finite": jnp.asarray(finite)}


@pytest.fixture
def guard():
    return MetricsGuard(lambda records: [f"image {record}" for record in records])


def test_the_newest_step_is_not_waited_for(guard):
    assert guard.pop() == []
    for step in (1, 2, 3):
        guard.push(step, metrics(step / 2), np.array([0]))
    assert guard.pop() == [(1, {"loss": 0.5}), (2, {"loss": 1.0})]
    assert guard.pop() == []
    assert guard.pop(leave=0) == [(3, {"loss": 1.5})]


def test_the_first_bad_step_is_named_though_later_ones_are_bad_too(guard):
    guard.push(1, metrics(1.0), np.array([0]))
    guard.push(2, metrics(np.nan, finite=False), np.array([4, 5]))
    guard.push(3, metrics(np.nan, finite=False), np.array([6, 7]))
    with pytest.raises(NonFiniteLossError, match="step 2: ") as caught:
        guard.pop(leave=0)
    assert "  loss nan\n  images of the batch:\n    image 4\n    image 5\n" in str(caught.value)


def test_a_bad_gradient_under_a_sound_loss_is_bad(guard):
    guard.push(9, metrics(1.25, finite=False), jnp.array([3]))
    with pytest.raises(NonFiniteLossError, match=r"step 9(.|\n)*loss 1.25(.|\n)*image 3"):
        guard.pop(leave=0)
