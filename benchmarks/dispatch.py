"""What it costs to start every step from the host, and whether several a start would pay.

    python benchmarks/dispatch.py [--steps 48] [--recipes RECIPE ...]

Two tables. The first runs a tiny detector with next to no work in a step, one step a start and
several: several are one program that takes as many batches. Nobody looks at the metrics before the
end, so that the device always has the next step in its queue. What a step then takes longer than
its work is what the starts cost.

The second starts steps of real recipes and measures how long the host is busy with it: the call
returns before the step has run. As long as that is less than a step, the device never waits for it.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from measuring import TrainStep, machine, show
from rich.table import Table

from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve

_BATCH = 4
_TINY = (
    "model.resizer.height=64",
    "model.resizer.width=64",
    "model.backbone.depth_multiplier=0.125",
    "model.backbone.min_depth=8",
    "model.neck.taps=[conv_1_pointwise, conv_2_pointwise]",
    "model.neck.extra_depths=[]",
    "model.anchors.num_layers=2",
    "model.anchors.scales=[0.2, 0.4]",
    "model.head.kernel_size=1",
    "data.train.max_boxes=8",
)
_AT_ONCE = (1, 4, 16)
_ROUNDS, _CALLS = 5, 9
# Images of a batch and images a second that are the goals on an H200.
_GOALS = {"retinanet": (64, 480), "ssd_resnet34": (128, 3000)}


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--recipes", nargs="*", default=list(_GOALS))
    arguments = parser.parse_args()
    print(f"{machine()}, jax {jax.__version__}, {jax.devices()[0]}")
    show(_tiny(arguments.steps))
    if arguments.recipes:
        show(_host_time(arguments.recipes))


def _tiny(steps: int) -> Table:
    experiment = resolve("demo_scenes", changes_of(list(_TINY))).experiment
    starts = {at_once: _several(experiment, at_once) for at_once in _AT_ONCE}
    best = dict.fromkeys(_AT_ONCE, float("inf"))
    for _ in range(_ROUNDS):
        for at_once, (start, _) in starts.items():
            best[at_once] = min(best[at_once], _seconds(start, steps // at_once) / at_once)
    table = Table(title=f"a tiny detector, {_BATCH} images, the best of {_ROUNDS} x {steps} steps")
    for column in ("steps a start", "compiling, s", "ms a step", "ms a start"):
        table.add_column(column, justify="right")
    for at_once, (start, compiling) in starts.items():
        table.add_row(
            str(at_once),
            f"{compiling:.1f}",
            f"{1e3 * best[at_once]:.3f}",
            f"{1e3 * _host_seconds(start):.3f}",
        )
    return table


def _several(experiment: schema.Experiment, at_once: int) -> tuple[Callable[[], Any], float]:
    """Returns what starts several steps as one program, and the seconds of compiling it."""
    step = TrainStep(experiment, _BATCH)
    if at_once == 1:
        return step.dispatch, step.compiling

    def steps(state: Any, batches: Any) -> Any:  # noqa: ANN401
        # XLA's CPU backend leaves convolutions in a loop to scalar code; this detector has none.
        return jax.lax.scan(step.function, state, batches)

    batches = jax.tree.map(lambda array: jnp.stack([array] * at_once), step.batch)
    began = time.perf_counter()
    compiled = jax.jit(steps, donate_argnums=0).lower(step.state, batches).compile()
    compiling = time.perf_counter() - began

    def start() -> Any:  # noqa: ANN401
        step.state, metrics = compiled(step.state, batches)
        return step.state, metrics

    return start, compiling


def _seconds(start: Callable[[], Any], starts: int) -> float:
    """Returns the seconds from start to start, with one always waiting in the queue."""
    jax.block_until_ready(start())
    began = time.perf_counter()
    for _ in range(starts):
        made = start()
    jax.block_until_ready(made)
    return (time.perf_counter() - began) / starts


def _host_seconds(start: Callable[[], Any]) -> float:
    """Returns the seconds of the call, on an idle device."""
    calls = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        made = start()
        calls.append(time.perf_counter() - began)
        jax.block_until_ready(made)
    return statistics.median(calls)


def _host_time(recipes: list[str]) -> Table:
    table = Table(title="the host's part of a step")
    for column in ("recipe", "arrays of the state", "ms a start", "ms a step, goal on an H200"):
        table.add_column(column, justify="right")
    for recipe in recipes:
        experiment = resolve(recipe, changes_of(["train.precision=float32"])).experiment
        step = TrainStep(experiment, 1)
        jax.block_until_ready(step.dispatch())
        host = _host_seconds(step.dispatch)
        images, speed = _GOALS.get(recipe, (0, 1))
        goal = f"{1e3 * images / speed:.0f} ({images} images)" if images else ""
        arrays = len(jax.tree.leaves(step.state))
        table.add_row(recipe, str(arrays), f"{1e3 * host:.2f}", goal)
    return table


if __name__ == "__main__":
    main()
