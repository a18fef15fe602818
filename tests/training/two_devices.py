"""Trains on one device and on two, in float32 or float64; run as a program.

`python -m tests.training.two_devices float64 STEPS [OVERRIDE ...]` prints, as JSON, the relative
differences of loss, gradient norm and parameters after the first and the last step. It needs a
process of its own, because JAX settles types and devices at its start.
"""

import json
import os
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.devices.mesh import build_mesh
from stillbox.experiment.schema import Experiment
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from tests.training.eight_devices import experiment_of, first_state, make_batch

DTYPE = sys.argv[1]


def cast(tree):
    """Returns a pytree with its floating-point arrays in `DTYPE`."""

    def cast_leaf(leaf):
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return np.asarray(leaf).astype(DTYPE if is_float else leaf.dtype)

    return jax.tree.map(cast_leaf, tree)


def cast_shapes(tree):
    """Returns a pytree of shapes and shardings with its floating-point ones in `DTYPE`."""
    return jax.tree.map(
        lambda leaf: leaf.update(dtype=DTYPE) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        tree,
    )


def run(experiment: Experiment, devices: int, steps: int) -> list[dict[str, np.ndarray]]:
    """Returns the loss, the gradient norm and the parameters after each step."""
    size = experiment.train.batch_size
    mesh = build_mesh(size, experiment.devices, jax.devices()[:devices])
    program = train_program(plan_training(experiment, mesh))
    program = replace(program, state=cast_shapes(program.state), batch=cast_shapes(program.batch))
    state = program.put_state(cast(first_state(experiment)))
    batch = program.put_batch(cast(make_batch(experiment)))
    compiled, seen = program.lower().compile(), []
    for _ in range(steps):
        state, metrics = compiled(state, batch)
        assert metrics["loss"].dtype == DTYPE
        numbers = {name: metrics[name] for name in ("loss", "gradient_norm")}
        # The next step donates these buffers.
        seen.append({name: np.array(array) for name, array in (numbers | state.params).items()})
    return seen


def difference(left: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the relative differences; of parameters, of all of them together."""
    numbers = ("loss", "gradient_norm")
    differences = {name: float(abs(other[name] / left[name] - 1)) for name in numbers}
    first, second = (
        np.concatenate([array.ravel() for name, array in seen.items() if name not in numbers])
        for seen in (left, other)
    )
    return differences | {
        "parameters": float(np.linalg.norm(second - first) / np.linalg.norm(first))
    }


def main() -> None:
    """Prints the differences."""
    os.environ["XLA_FLAGS"] = " ".join(
        (os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=2")
    )
    if DTYPE == "float64":
        jax.config.update("jax_enable_x64", True)
        # The package names float32 where bfloat16 is too short; here float32 is too short as well.
        jnp.float32 = jnp.float64
    steps, overrides = int(sys.argv[2]), sys.argv[3:]
    experiment = experiment_of("data.train.max_boxes=4", *overrides)
    experiment = replace(experiment, train=replace(experiment.train, precision=DTYPE))
    alone, two = (run(experiment, devices, steps) for devices in (1, 2))
    print(json.dumps([difference(alone[step], two[step]) for step in (0, -1)]))


if __name__ == "__main__":
    main()
