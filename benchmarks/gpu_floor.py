"""The floor under the rows of `gpu.py`, from XLA's compiler for GPUs; no GPU is needed.

    python benchmarks/gpu_floor.py [--target h200] [--rows ROW ...]

Needs the extra `cuda`. Nothing is measured: arithmetic is the convolutions at the published
peak, memory what the compiled program moves at the published bandwidth, each as if the other cost
nothing. A step takes longer than either, and a goal below one of them would be out of reach.
"""

import argparse

from gpu_row import ROWS, experiment_of
from measuring import show
from rich.table import Table

from stillbox.checking.ahead_of_time.compiling import check_step
from stillbox.checking.ahead_of_time.report import size
from stillbox.checking.ahead_of_time.targets import find_target

_COLUMNS = ("row", "batch", "memory", "GFLOP an image", "arithmetic, ms", "memory, ms", "goal, ms")


def main() -> None:
    """Prints the table."""
    names = [name for name, row in ROWS.items() if not row.real]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="h200", help="one GPU, as stillbox check has it")
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW")
    arguments = parser.parse_args()
    target = find_target(arguments.target)
    table = Table(*_COLUMNS, title=f"{target.describe()}: floors, not measurements")
    for name in arguments.rows:
        row = ROWS[name]
        print(f"... {name}", flush=True)
        check = check_step(experiment_of(row), target, "train")
        if check.memory is None or check.roofline is None:
            table.add_row(name, str(row.batch_size), check.refused)
            continue
        table.add_row(
            name,
            str(row.batch_size),
            size(check.memory.total),
            f"{check.flops_per_image / 1e9:,.0f}",
            f"{1e3 * check.roofline.products:.1f}",
            f"{1e3 * check.roofline.memory:.1f}",
            f"{1e3 * row.batch_size / row.goal:.0f}" if row.goal else "",
        )
    show(table)


if __name__ == "__main__":
    main()
