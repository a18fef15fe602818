"""Resident memory of the input pipeline over the epochs of a training.

    python benchmarks/input_memory.py [--epochs 20] [--task retinanet]

Counted in the process that makes batches with two threads and drops them, as training does.
"""

import argparse
import resource
import tempfile
from pathlib import Path

from input_pipeline import IMAGES, TASKS, draw_jpeg, open_task, write_records
from measuring import machine, show
from rich.table import Table

from stillbox.devices.process import keep_freed_memory
from stillbox.inputs.loader import TrainLoader

BATCH = 16


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=1024, help="of an epoch")
    parser.add_argument("--task", choices=TASKS, default="retinanet")
    arguments = parser.parse_args()
    keep_freed_memory()  # as every command does
    table = Table("after epoch", title=f"{arguments.task}, {arguments.images} images; {machine()}")
    for pixels in ("float32", "uint8"):
        table.add_column(f"{pixels}, MiB resident", justify="right")
    with tempfile.TemporaryDirectory() as folder:
        files = [draw_jpeg(number) for number in range(IMAGES)]
        records = write_records(Path(folder), [files[n % IMAGES] for n in range(arguments.images)])
        data, task = open_task(records, TASKS[arguments.task]), TASKS[arguments.task]
        columns = []
        for pixels in ("uint8", "float32"):
            loader = TrainLoader(
                data, augmentations=task.augmentations, batch_size=BATCH, workers=2, pixels=pixels
            )
            steps, seen = arguments.images // BATCH, dict[int, float]()
            batches = loader.iterate(0, steps * arguments.epochs)
            for step, _ in enumerate(batches, start=1):
                if step % steps == 0:
                    seen[step // steps] = resident()
            columns.append(seen)
    for epoch in sorted({1, 5, 10, 15, arguments.epochs} & set(columns[0])):
        table.add_row(str(epoch), *(f"{seen[epoch]:,.0f}" for seen in reversed(columns)))
    show(table)


def resident() -> float:
    """Returns the MiB that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
