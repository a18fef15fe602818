"""Images per second of large-scale jitter, mosaic, mixup and the affine map, on records.

    python benchmarks/strong_augmentations.py RECORDS ... --label-map FILE [--side 320]

Each row is one list of augmentations before a resizer of `side` by `side`, in batches of 16. All
run in one thread of one core, take turns, and the figure is the median of the rounds by CPU time.
Without memory for images every partner is decoded anew.
"""

import argparse
import os
import statistics

from input_pipeline import Task, loader_rate
from measuring import machine, show
from rich.table import Table

from stillbox.devices.process import keep_freed_memory
from stillbox.experiment import schema


def lists(side: int) -> dict[str, tuple[schema.Augmentation, ...]]:
    """Returns the lists that are measured, by their titles."""
    flip = schema.RandomHorizontalFlip()
    mosaic = schema.Mosaic(height=side, width=side)
    affine = schema.RandomAffine(output_size=(side, side))
    mixup = schema.MixUp(height=side, width=side)
    return {
        "flip": (flip,),
        "large_scale_jitter, flip": (schema.LargeScaleJitter(output_size=side), flip),
        "random_affine, flip": (affine, flip),
        "mixup, flip": (mixup, flip),
        "mosaic, flip": (mosaic, flip),
        "mosaic, random_affine, flip": (mosaic, affine, flip),
        "mosaic, random_affine, mixup, flip": (mosaic, affine, mixup, flip),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+")
    parser.add_argument("--label-map", required=True)
    parser.add_argument("--side", type=int, default=320)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    keep_freed_memory()  # as every command does
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    records = schema.Records(paths=tuple(arguments.records), label_map=arguments.label_map)
    side = arguments.side
    resizer = schema.FixedShapeResizer(height=side, width=side)
    rates: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for title, augmentations in lists(side).items():
            rate = loader_rate(records, Task(resizer, augmentations), arguments.seconds)
            rates.setdefault(title, []).append(rate.cpu)
    table = Table("augmentations", title=f"{side} x {side}, one core; {machine()}")
    for column in ("images/s", "ms/image"):
        table.add_column(column, justify="right")
    for title, seconds in rates.items():
        median = statistics.median(seconds)
        table.add_row(title, f"{median:.0f}", f"{1000 / median:.2f}")
    show(table)


if __name__ == "__main__":
    main()
