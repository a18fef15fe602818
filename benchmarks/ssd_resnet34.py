"""The train step of SSD ResNet-34 beside the same network in PyTorch and torchvision's SSD300.

    python benchmarks/ssd_resnet34.py --torch-python PATH [--batch-size 8] [--steps 7]
        [--warm-up 2] [--precisions float32 bfloat16]
    python benchmarks/ssd_resnet34.py --parts [--batch-size 8] [--steps 7]

It runs on the CPU, and all in turn: each round measures the peak of a matrix product and then takes
a step of each, ours here and the peers' in a process of PyTorch's that waits meanwhile, on as many
threads. The rounds of the warm-up do not count; seconds are the median of the others, the peak is
the fastest product of either framework in the run. FLOPs are those of the convolutions, a
multiply-add is two, and a step counts as three forward passes. It does a little less: nobody needs
the gradient by the pixels, and the recipe freezes the stem and one more convolution. PyTorch's
counter, which knows that, is shown too.

The batch is the same for all: noise with 8 boxes an image. Ours finds its targets in the step, from
as many rows as the recipe has; the same network in PyTorch gets them ready-made; torchvision does
its own matching. All three decay and update their weights, and freeze what the recipe freezes.

`--parts` says what our step spends outside its convolutions, see `step_parts.py`.

PyTorch is no dependency of this project. `--torch-python` is a Python that has it:

    python3 -m venv torch-venv
    torch-venv/bin/pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

# Before anything of jax starts a backend.
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from measuring import BOXES, TrainStep, cores, forward_flops, machine, peak, show
from rich.table import Table
from step_parts import measure_parts

from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.training.targets import batch_targets

_PRECISIONS = ("float32", "bfloat16")
_OURS = "stillbox"


class Row(NamedTuple):
    """What is stepped, and what it is known to cost."""

    name: str
    """Framework and network."""
    precision: str
    """Of its convolutions."""
    forward_flops: int
    """Of one image."""
    run: Callable[[], float]
    """Takes a step, returns its seconds."""


def main() -> None:
    """Prints the table."""
    arguments = _parse()
    experiments = {
        precision: resolve("ssd_resnet34", [f"train.precision={precision}"]).experiment
        for precision in arguments.precisions
    }
    print(f"{machine()}, jax {jax.__version__}, batch {arguments.batch_size}, 300 px")
    if arguments.parts:
        rounds = arguments.warm_up, arguments.steps
        for experiment in experiments.values():
            show(measure_parts(experiment, arguments.batch_size, *rounds))
        return
    steps = {key: TrainStep(one, arguments.batch_size) for key, one in experiments.items()}
    rows = [
        Row(f"{_OURS} ssd_resnet34", key, forward_flops(step.detector), step.run)
        for key, step in steps.items()
    ]
    if not arguments.torch_python:
        _compare(rows, {}, arguments)
        print("missing: the peers in PyTorch; give --torch-python, see the head of this script")
        return
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        first = arguments.precisions[0]
        _write_inputs(inputs, steps[first], experiments[first].model)
        with torch_peers(arguments, inputs) as (described, ask):
            print(", ".join(f"{name} {version}" for name, version in described["versions"].items()))
            rows += [_peer_row(name, facts, ask) for name, facts in described["peers"].items()]
            products = {f"PyTorch {p}": lambda p=p: ask(p)["gflops"] for p in arguments.precisions}
            _compare(rows, products, arguments)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=7, help="rounds that count")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before that do not")
    parser.add_argument("--precisions", nargs="+", choices=_PRECISIONS, default=None)
    parser.add_argument("--torch-python", help="a Python with torch and torchvision")
    parser.add_argument("--parts", action="store_true", help="what our step spends its time on")
    arguments = parser.parse_args()
    arguments.precisions = arguments.precisions or list(_PRECISIONS)[: 1 if arguments.parts else 2]
    return arguments


def _compare(
    rows: list[Row], products: dict[str, Callable[[], float]], arguments: argparse.Namespace
) -> None:
    """Steps all rows in turn and prints the table."""
    ours = {f"XLA {p}": lambda p=p: peak(p) for p in arguments.precisions}
    products = ours | products
    speeds: dict[str, list[float]] = {name: [] for name in products}
    seconds: list[list[float]] = [[] for _ in rows]
    for number in range(arguments.warm_up + arguments.steps):
        for name, product in products.items():
            speeds[name].append(product())
        taken = [row.run() for row in rows]
        if number >= arguments.warm_up:
            for times, last in zip(seconds, taken, strict=True):
                times.append(last)
    for name, product in products.items():
        speeds[name].append(product())
    show(_table(rows, seconds, speeds, arguments.batch_size))


def _table(
    rows: list[Row], seconds: list[list[float]], speeds: dict[str, list[float]], batch_size: int
) -> Table:
    table = Table(title=f"train step, batch {batch_size}")
    columns = ("precision", "s a step", "from .. to", "images/s", "forward GFLOP", "GFLOP/s")
    for column in ("step", *columns, "of the peak"):
        table.add_column(column, justify="right")
    for row, times in zip(rows, seconds, strict=True):
        middle = statistics.median(times)
        speed = 3 * batch_size * row.forward_flops / middle / 1e9
        best = max(max(s) for name, s in speeds.items() if name.endswith(row.precision))
        table.add_row(
            row.name,
            row.precision,
            f"{middle:.3f}",
            f"{min(times):.3f} .. {max(times):.3f}",
            f"{batch_size / middle:.2f}",
            f"{row.forward_flops / 1e9:.2f}",
            f"{speed:.0f}",
            f"{speed / best:.0%}",
        )
    for name, values in speeds.items():
        framework, precision = name.split()
        spread = f"{min(values):.0f} .. {max(values):.0f}"
        best = f"{max(values):.0f}"
        table.add_row(f"{framework}, matrix product", precision, "", spread, "", "", best, "")
    return table


def _peer_row(name: str, facts: dict[str, int], ask: Callable[[str], dict[str, float]]) -> Row:
    network, precision = name.split()
    forward, backward = (facts[f"{way}_flops"] for way in ("forward", "backward"))
    print(
        f"  {name}: {facts['parameters']:,} parameters; counted by PyTorch for one image: "
        f"{forward / 1e9:.2f} GFLOP forward, {backward / 1e9:.2f} backward"
    )
    framework = "torchvision" if network == "ssd300_vgg16" else "PyTorch"
    return Row(f"{framework} {network}", precision, forward, lambda: ask(name)["seconds"])


@contextmanager
def torch_peers(
    arguments: argparse.Namespace, inputs: Path
) -> Iterator[tuple[dict[str, Any], Callable[[str], dict[str, float]]]]:
    """Starts `torch_ssd.py`; gives what it says about itself, and a function that asks it."""
    script = Path(__file__).with_name("torch_ssd.py")
    command = [arguments.torch_python, str(script), str(inputs), "--threads", str(cores())]
    command += ["--precisions", *arguments.precisions]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def read() -> dict[str, Any]:
            line = answers.readline()
            if not line:
                raise SystemExit(f"{' '.join(command)} ended with {process.wait()}")
            return json.loads(line)

        def ask(question: str) -> dict[str, float]:
            print(question, file=questions, flush=True)
            return read()

        yield read(), ask
        questions.close()


def _write_inputs(path: Path, step: TrainStep, model: schema.Model) -> None:
    """Writes our batch and its targets for the peers."""
    anchors, batch = step.detector.anchors, step.batch
    targets = jax.jit(lambda batch: batch_targets(batch, anchors, model))(batch)
    np.savez(
        path,
        images=batch.images,
        boxes=batch.boxes[:, :BOXES],
        # Slot 0 is the background.
        labels=batch.classes[:, :BOXES] + 1,
        classes=np.argmax(targets.class_targets, axis=-1),
        codes=targets.box_targets,
    )


if __name__ == "__main__":
    main()
