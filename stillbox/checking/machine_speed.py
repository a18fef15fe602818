"""The speed of this machine, measured on products of matrices as small detectors have them."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.checking.memory_verdict import Machine
from stillbox.devices import job

# Eight maps of 40x40 with as many channels as the pyramid of a small detector, in a few layers.
_POSITIONS, _CHANNELS, _LAYERS = 8 * 40 * 40, 96, 8
_ROUNDS = 7
# A training step of a small detector beside such products, on two cores of an x86 server.
_SHARE_OF_PRODUCTS = 0.5
# Operations per second of an accelerator that is not here.
_ELSEWHERE = 5e12


def measured_speed(machine: Machine) -> float:
    """Returns the operations per second of a training step on a machine; a multiply-add is two.

    A machine that is not here is taken for an accelerator of medium size. All processes of a job
    get the speed of the first.
    """
    if machine.platform != "cpu" and jax.default_backend() == "cpu":
        return _ELSEWHERE
    # The devices of a CPU share its cores.
    devices = 1 if machine.platform == "cpu" else machine.devices
    return _SHARE_OF_PRODUCTS * float(job.broadcast(_products_speed())) * devices


def _products_speed() -> float:
    rows = jnp.ones((_POSITIONS, _CHANNELS))
    kernel = jnp.full((_CHANNELS, _CHANNELS), 1 / _CHANNELS)
    gradient = jax.jit(jax.grad(_layers))
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        jax.block_until_ready(gradient(kernel, rows))
        seconds.append(time.perf_counter() - began)
    # A gradient has twice the operations of its function; the first round compiles.
    operations = 3 * _LAYERS * 2 * _POSITIONS * _CHANNELS**2
    return operations / float(np.median(seconds[1:]))


def _layers(kernel: jax.Array, rows: jax.Array) -> jax.Array:
    for _ in range(_LAYERS):
        rows = jnp.clip(rows @ kernel, 0, 6)
    return rows.sum()
