"""Memory and time of a train step: whole, with rematerialisation, and in micro-batches.

    python benchmarks/step_memory.py [--recipe ssd_resnet34] [--set PATH=VALUE ...]
        [--batch-size 8] [--steps 5]
    python benchmarks/step_memory.py --memory [--recipe retinanet] [--batch-size 8]

Memory is what the compiler plans for a step beside its arguments and results. FLOPs are its count,
which has one round of a loop, times the micro-batches. The steps are taken in turn, on noise;
seconds are their median. `--memory` compiles only.
"""

import argparse
import statistics
import time
from typing import NamedTuple

import jax
from measuring import TrainStep, machine, show
from rich.table import Table

from stillbox.cli.overrides import changes_of
from stillbox.devices.mesh import build_mesh
from stillbox.devices.process import restart_with_large_pages
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program

_ROWS = {
    "whole": (),
    "blocks": ("train.rematerialization=blocks",),
    "2 micro-batches": ("train.accumulation_steps=2",),
    "4 micro-batches": ("train.accumulation_steps=4",),
}


class Row(NamedTuple):
    """One step."""

    temporary: float
    flops: float
    compiling: float
    step: TrainStep | None


def main() -> None:
    """Prints the table."""
    restart_with_large_pages()  # as every command does
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="ssd_resnet34", help="or a file")
    parser.add_argument("--set", action="append", default=[], help="a field of it: path=value")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="take no step")
    arguments = parser.parse_args()
    title = f"{arguments.recipe}, batch {arguments.batch_size}, jax {jax.__version__}, {machine()}"
    table = Table("step", title=title)
    for column in ("memory, MiB", "GFLOP", "s a step", "compiling, s"):
        table.add_column(column, justify="right")
    rows = {name: _compile(_experiment(arguments, name), arguments) for name in _ROWS}
    seconds = _measure(rows, arguments.steps)
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row.temporary / 2**20:,.0f}",
            f"{row.flops / 1e9:,.0f}",
            f"{statistics.median(seconds[name]):.2f}" if row.step else "",
            f"{row.compiling:.0f}",
        )
    show(table)


def _experiment(arguments: argparse.Namespace, name: str) -> schema.Experiment:
    fields = [*_ROWS[name], f"train.batch_size={arguments.batch_size}"]
    return resolve(arguments.recipe, changes_of([*arguments.set, *fields])).experiment


def _compile(experiment: schema.Experiment, arguments: argparse.Namespace) -> Row:
    parts = experiment.train.accumulation_steps
    if not arguments.memory:
        step = TrainStep(experiment, arguments.batch_size)
        return Row(step.temporary_bytes, parts * step.counted_flops, step.compiling, step)
    mesh = build_mesh(arguments.batch_size, experiment.devices, parts=parts)
    lowered = train_program(plan_training(experiment, mesh)).lower()
    began = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - began
    memory = compiled.memory_analysis().temp_size_in_bytes
    return Row(memory, parts * compiled.cost_analysis()["flops"], seconds, None)


def _measure(rows: dict[str, Row], steps: int) -> dict[str, list[float]]:
    """Returns the seconds of each step; the first does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(steps + 1):
        for name, row in rows.items():
            if row.step is not None:
                seconds[name].append(row.step.run())
    return {name: taken[1:] for name, taken in seconds.items()}


if __name__ == "__main__":
    main()
