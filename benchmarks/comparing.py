"""What the benchmarks that compare train steps share: peers, rounds, the table.

Peers are processes of their own, see `answering.py`. Each round measures the matrix products of all
and then takes two steps of each, so that a busy moment of the machine hits all. The second of them
counts: the first takes memory that the system has got back while the process waited.
"""

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from environments import KERAS, TORCH, peer_python
from measuring import TrainStep, forward_flops, peak, show
from rich.table import Table

PRECISIONS = ("float32", "bfloat16")
Products = dict[str, Callable[[], float]]


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


class Peers(NamedTuple):
    """What a peer's process has."""

    rows: list[Row]
    products: Products
    """Functions that return GFLOP/s, named by framework and type."""


def add_arguments(parser: argparse.ArgumentParser, batch_size: int | None) -> None:
    """Adds the options of all comparisons."""
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--steps", type=int, default=7, help="rounds that count")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before that do not")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=None)
    parser.add_argument("--parts", action="store_true", help="what our step spends its time on")
    parser.add_argument("--peers", action="store_true", help="make environments of the peers")
    parser.add_argument("--set", action="append", default=[], help="a field of ours: path=value")


def find_peers(arguments: argparse.Namespace) -> None:
    """Makes environments for peers without a given Python, if `--peers` asks for them."""
    for name, *requirements in (TORCH, KERAS):
        option = f"{name}_python"
        if arguments.peers and getattr(arguments, option, "") is None:
            python = peer_python(name, *requirements)
            setattr(arguments, option, python and str(python))


def own_row(name: str, precision: str, step: TrainStep, flops: int | None = None) -> Row:
    """Returns the row of a step of ours; without `flops`, the FLOPs of its convolutions."""
    print(f"  {name} {precision}: {step.parameters:,} trained parameters")
    return Row(name, precision, flops or forward_flops(step.detector), step.run)


@contextmanager
def peer_process(command: list[str]) -> Iterator[Peers]:
    """Starts a script that ends in `answering.serve`, and prints what it says about itself."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def read() -> Any:  # noqa: ANN401
            line = answers.readline()
            if not line:
                raise SystemExit(f"{' '.join(command)} ended with {process.wait()}")
            return json.loads(line)

        def ask(question: str) -> float:
            print(question, file=questions, flush=True)
            return float(read())

        yield _described(read(), ask)
        questions.close()


def _described(described: dict[str, Any], ask: Callable[[str], float]) -> Peers:
    """Prints what a peer says about itself and returns what it has."""
    print(", ".join(f"{name} {version}" for name, version in described["versions"].items()))
    rows = []
    for facts in described["peers"]:
        name, precision = facts["name"], facts["precision"]
        print(
            f"  {name} {precision}: {facts['parameters']:,} trained parameters; for one image "
            + ", ".join(f"{facts[way] / 1e9:.2f} GFLOP {way}" for way in facts["counted"])
        )
        run = partial(ask, f"{name} {precision}")
        rows.append(Row(name, precision, facts["forward"], run))
    products = {name: partial(ask, name) for name in described["products"]}
    return Peers(rows, products)


def compare(
    rows: list[Row],
    products: Products,
    arguments: argparse.Namespace,
    title: str = "train step",
    passes: int = 3,
) -> None:
    """Steps all rows in turn and prints the table.

    Args:
        rows: ours and the peers'.
        products: of the peers; ours come by themselves.
        arguments: with the options of `add_arguments`.
        title: what a step is.
        passes: forward passes that it counts as.
    """
    products = {f"XLA {p}": partial(peak, p) for p in arguments.precisions} | products
    speeds: dict[str, list[float]] = {name: [] for name in products}
    seconds: list[list[float]] = [[] for _ in rows]
    for number in range(arguments.warm_up + arguments.steps):
        for name, product in products.items():
            speeds[name].append(product())
        taken = [_second_step(row) for row in rows]
        if number >= arguments.warm_up:
            for times, last in zip(seconds, taken, strict=True):
                times.append(last)
    for name, product in products.items():
        speeds[name].append(product())
    table = Table(title=f"{title}, batch {arguments.batch_size}")
    _fill(table, rows, seconds, speeds, arguments.batch_size, passes)
    show(table)


def _second_step(row: Row) -> float:
    """Takes two steps and returns the seconds of the second."""
    row.run()
    return row.run()


def _fill(
    table: Table,
    rows: list[Row],
    seconds: list[list[float]],
    speeds: dict[str, list[float]],
    batch_size: int,
    passes: int,
) -> None:
    columns = ("precision", "s a step", "from .. to", "images/s", "forward GFLOP", "GFLOP/s")
    for column in ("step", *columns, "of the peak"):
        table.add_column(column, justify="right")
    for row, times in zip(rows, seconds, strict=True):
        middle = statistics.median(times)
        speed = passes * batch_size * row.forward_flops / middle / 1e9
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
