"""How time and memory of a step grow with batch, image, boxes, classes, records and devices.

    python benchmarks/growth.py [--axes batch side boxes classes records devices] [--steps 5]
        [--recipes retinanet ssd_mobilenet_v1_300x300]

One table for each axis and recipe; the models are small, see `SMALL`. Seconds are the median of the
steps, on noise. Memory is what the compiler plans beside arguments and results, but resident memory
of the process for records. The exponent in a row describes the growth since the row above: 1
is in proportion, 0 not at all. Below it is the fit of a line through all logarithms, and what is
expected at most. Where a fixed part outweighs the rest, exponents start lower.

Devices and records are measured in processes of their own, see `growth_devices.py` and
`growth_records.py`. The devices are virtual ones that share this machine's cores: their time says
what dividing costs, not what it gains.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from measuring import TrainStep, machine, show
from rich.table import Table

from stillbox.cli.overrides import changes_of
from stillbox.devices.mesh import build_mesh
from stillbox.devices.process import restart_with_large_pages
from stillbox.evaluation.program import predict_program
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector

Row = dict[str, float]
"""Measured numbers by column."""

SMALL = {
    "retinanet": (
        *("model.backbone.depth=18", "model.neck.depth=64", "model.head.depth=64"),
        "model.resizer={kind: fixed_shape, height: 256, width: 256}",
    ),
    "ssd_mobilenet_v1_300x300": ("model.backbone.depth_multiplier=0.5",),
}
"""Recipes by name, and what makes them small."""


class Axis(NamedTuple):
    """What grows."""

    values: tuple[int, ...]
    field: str
    """The field or option that is set to a value; `{}` stands for the value."""
    expected: dict[str, float]
    """The greatest exponent that is expected, by column."""
    detects: bool = True
    """Whether detection depends on it."""


_PROPORTIONAL = {"train, s": 1, "train, MiB": 1, "detect, s": 1, "detect, MiB": 1}
AXES = {
    "batch": Axis((1, 2, 4, 8, 16), "train.batch_size={}", _PROPORTIONAL),
    "side": Axis(
        (128, 256, 384, 512),
        "model.resizer={{kind: fixed_shape, height: {0}, width: {0}}}",
        dict.fromkeys(_PROPORTIONAL, 2),
    ),
    "boxes": Axis((1, 10, 100, 1000), "data.train.max_boxes={}", _PROPORTIONAL, detects=False),
    "classes": Axis((1, 10, 100, 1000), "model.num_classes={}", _PROPORTIONAL),
}
RECORDS = (1, 1_000, 10_000, 100_000, 1_000_000)
DEVICES = (1, 2, 4, 8)
_BATCH = 4


def main() -> None:
    """Prints the tables."""
    restart_with_large_pages()  # as every command does
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    axes = (*AXES, "records", "devices")
    parser.add_argument("--axes", nargs="+", choices=axes, default=axes)
    parser.add_argument("--recipes", nargs="+", choices=SMALL, default=list(SMALL))
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{machine()}, jax {jax.__version__}")
    for name in arguments.axes:
        if name == "records":
            rows = {count: _other_process("growth_records.py", count) for count in RECORDS}
            expected = dict.fromkeys(rows[1], 1) | {"fetch, ms": 0}
            show(growth_table("records", rows, expected))
        for recipe in arguments.recipes if name != "records" else ():
            title = f"{name}, {recipe}"
            if name == "devices":
                rows = {count: _on_devices(recipe, count, arguments.steps) for count in DEVICES}
                expected = dict.fromkeys(rows[1], 0) | {"train, MiB of each": -1}
                show(growth_table(title, rows, expected))
                continue
            axis = AXES[name]
            rows = {value: _step(recipe, axis, value, arguments.steps) for value in axis.values}
            show(growth_table(title, rows, axis.expected))


def growth_table(title: str, rows: dict[int, Row], expected: dict[str, float]) -> Table:
    """Returns the table of an axis, with exponents.

    Args:
        title: the axis.
        rows: by its value.
        expected: the greatest exponent of each column.
    """
    table = Table(title.partition(",")[0], title=title)
    columns = list(next(iter(rows.values())))
    for column in columns:
        table.add_column(column, justify="right")
        table.add_column("^", justify="right")
    values = list(rows)
    for before, value in zip([None, *values], values, strict=False):
        cells = [f"{value:,}"]
        for column in columns:
            pair = [before, value] if before is not None else []
            exponent = f"{_exponent(pair, [rows[at][column] for at in pair]):.1f}" if pair else ""
            cells += [f"{rows[value][column]:,.4g}", exponent]
        table.add_row(*cells)
    fitted = [_exponent(values, [rows[at][column] for at in values]) for column in columns]
    table.add_section()
    cells = [cell for fit in fitted for cell in ("", f"{fit:.1f}")]
    table.add_row("fit", *cells)
    cells = [cell for column in columns for cell in ("", f"{expected[column]}")]
    table.add_row("expected at most", *cells)
    return table


def _exponent(values: Sequence[int], measured: Sequence[float]) -> float:
    """Returns the slope of the line through the logarithms."""
    logarithms = [math.log(max(number, 1e-9)) for number in measured]
    return float(np.polyfit([math.log(value) for value in values], logarithms, 1)[0])


def _step(recipe: str, axis: Axis, value: int, steps: int) -> Row:
    """Measures the train step and, if the axis concerns it, detection."""
    fields = (*SMALL[recipe], f"train.batch_size={_BATCH}", axis.field.format(value))
    experiment = resolve(recipe, changes_of(fields)).experiment
    boxes = experiment.data.train.max_boxes
    # Every row is a box where boxes grow.
    given = {"boxes": boxes} if "max_boxes" in axis.field else {}
    train = TrainStep(experiment, experiment.train.batch_size, **given)
    row = {"train, s": _median(train.run, steps), "train, MiB": train.temporary_bytes / 2**20}
    if axis.detects:
        row |= _detection(experiment, steps)
    return row


def _detection(experiment: schema.Experiment, steps: int) -> Row:
    """Measures detection by fresh weights, by which every image has as many objects as can be."""
    size, model = experiment.train.batch_size, experiment.model
    program = predict_program(experiment, build_mesh(size, schema.Devices()), batch_size=size)
    _, params, stats = split_detector(build_detector(model))
    images = np.random.default_rng(0).uniform(0, 255, program.images.shape).astype(np.float32)
    true_sizes = np.tile(np.asarray(model.resizer.input_size, np.int32), (size, 1))
    detect = program.bind(params, stats)

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(detect(jnp.asarray(images), jnp.asarray(true_sizes)))
        return time.perf_counter() - began

    memory = program.compiled.memory_analysis().temp_size_in_bytes
    return {"detect, s": _median(run, steps), "detect, MiB": memory / 2**20}


def _median(run: Callable[[], float], steps: int) -> float:
    run()
    return statistics.median(run() for _ in range(steps))


def _on_devices(recipe: str, count: int, steps: int) -> Row:
    flags = f"--xla_force_host_platform_device_count={count}"
    fields = (*SMALL[recipe], f"train.batch_size={DEVICES[-1]}")
    return _other_process("growth_devices.py", recipe, steps, *fields, XLA_FLAGS=flags)


def _other_process(script: str, *arguments: Any, **environment: str) -> Row:  # noqa: ANN401
    """Returns what a script beside this one prints as JSON."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
    ran = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"{script} {arguments} failed:\n{ran.stderr}")
    row: Row = json.loads(ran.stdout.splitlines()[-1])
    return row


if __name__ == "__main__":
    main()
