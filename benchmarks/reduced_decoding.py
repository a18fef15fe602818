"""`data.reduced_decoding`: images per second of large photographs, and how much pixels differ.

    python benchmarks/reduced_decoding.py [PHOTOGRAPH.jpg ...]

Every photograph is enlarged to each size before it is measured, with noise that an enlarged image
lacks; without one they are drawn. The task is SSD's, see `input_pipeline.py`. Differences are those
between the pixels of training with and without the field, 0..255.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from input_pipeline import TASKS, Task, draw_jpeg, loader_rate, open_task, write_records
from measuring import machine, show
from numpy.typing import NDArray
from rich.table import Table

from stillbox.devices.process import keep_freed_memory
from stillbox.experiment import schema
from stillbox.inputs.decode import decode_image
from stillbox.inputs.loader import TrainLoader

SIZES = ((720, 960), (1440, 1920), (2880, 3840))
Method = Literal["bilinear", "bilinear_antialias"]
METHODS: tuple[Method, ...] = ("bilinear", "bilinear_antialias")
IMAGES = 8


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    keep_freed_memory()  # as every command does
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    files = [path.read_bytes() for path in arguments.photographs[:IMAGES]]
    files = files or [draw_jpeg(number) for number in range(IMAGES)]
    table = Table("photographs", "method", title=f"SSD 300, flip and crop, uint8; {machine()}")
    for column in ("whole, images/s", "reduced", "mean difference", "greatest"):
        table.add_column(column, justify="right")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            large = [enlarged(data, size) for data in files]
            records = write_records(Path(folder), [large[n % len(large)] for n in range(IMAGES)])
            for method in METHODS:
                add_row(table, records, size, method, arguments.seconds)
    show(table)


def enlarged(data: bytes, size: tuple[int, int]) -> bytes:
    """Returns a photograph at another size, with grain."""
    large = cv2.resize(decode_image(data), size[::-1], interpolation=cv2.INTER_CUBIC)
    grain = np.random.default_rng(0).normal(0, 4, (*size, 1))
    pixels = (large + grain).clip(0, 255).astype(np.uint8)
    return cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


def add_row(
    table: Table, records: schema.Records, size: tuple[int, int], method: Method, seconds: float
) -> None:
    """Measures one size and method."""
    task = Task(schema.FixedShapeResizer(method=method), TASKS["ssd"].augmentations)
    rates = [
        loader_rate(records, task, seconds, batch_size=8, pixels="uint8", reduced_decoding=each).cpu
        for each in (False, True)
    ]
    whole, reduced = (pixels(records, task, reduced_decoding=each) for each in (False, True))
    difference = np.abs(whole - reduced)
    speed = [f"{rate:.1f}" for rate in rates]
    table.add_row(
        f"{size[1]} x {size[0]}",
        method,
        *speed,
        f"{difference.mean():.2f}",
        f"{difference.max():.0f}",
    )


def pixels(records: schema.Records, task: Task, *, reduced_decoding: bool) -> NDArray[np.float32]:
    """Returns the images of 32 rows of training."""
    loader = TrainLoader(
        open_task(records, task),
        augmentations=task.augmentations,
        batch_size=32,
        workers=0,
        reduced_decoding=reduced_decoding,
    )
    return np.asarray(loader.batch(0).images)


if __name__ == "__main__":
    main()
