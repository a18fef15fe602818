"""One row of `gpu.py`: a recipe's train step on the accelerator, in a process of its own.

    python benchmarks/gpu_row.py ROW --seconds 8 [--tiny]

It prints what it found as one line of JSON, the last of its output.
"""

import argparse
import dataclasses
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before jax is imported: its loader of cached programs prints pages about tuning flags.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
from measuring import TrainStep, forward_flops

from stillbox.cli.overrides import changes_of
from stillbox.devices.setup import peak_memory, prepare_process
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.records.scenes import write_scenes
from stillbox.training.loop import train

_NO_MEMORY = "RESOURCE_EXHAUSTED"
_WARM_UP = 3
# Of the records for rows with real input: photographs' size, and the classes that scenes have.
_SCENES, _SIDES, _CLASSES = 512, (480, 640), 6


@dataclass(frozen=True)
class Row:
    """What a row measures."""

    recipe: str
    """A recipe's name."""
    side: int
    """Of the square network input."""
    batch_size: int
    """Images of a step; halved until it fits."""
    precision: str = "bfloat16"
    """Of the activations."""
    real: bool = False
    """From records through the recipe's input pipeline and the training loop; otherwise noise that
    lies on the device."""
    goal: float = 0.0
    """Images a second that are wanted on an H200; 0: none is stated."""


# What has a goal comes first: where time runs out, the end is left out.
ROWS = {
    "retinanet-800": Row("retinanet", 800, 48, goal=310),
    "retinanet-640": Row("retinanet", 640, 64, goal=480),
    "ssd_resnet34": Row("ssd_resnet34", 300, 256, goal=3000),
    "ssd_mobilenet_v1_300": Row("ssd_mobilenet_v1_300x300", 300, 512),
    "ssd_mobilenet_v1_fpn_640": Row("ssd_mobilenet_v1_fpn_640x640", 640, 128),
    "retinanet-640 real": Row("retinanet", 640, 64, real=True),
    "ssd_resnet34 real": Row("ssd_resnet34", 300, 256, real=True),
    "retinanet-640 float32": Row("retinanet", 640, 64, "float32"),
    "ssd_mobilenet_v1_300 real": Row("ssd_mobilenet_v1_300x300", 300, 512, real=True),
    "ssd_resnet34 float32": Row("ssd_resnet34", 300, 256, "float32"),
}


def main() -> None:
    """Prints the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--seconds", type=float, default=8.0, help="to measure for")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: small, few steps")
    arguments = parser.parse_args()
    prepare_process()
    row = tiny(ROWS[arguments.row]) if arguments.tiny else ROWS[arguments.row]
    seconds = 0.5 if arguments.tiny else arguments.seconds
    measure = _measure_real if row.real else _measure
    while True:
        try:
            measured = measure(row, seconds)
            break
        except (RuntimeError, MemoryError) as error:
            if _NO_MEMORY not in str(error) or row.batch_size == 1:
                raise
        # Outside the clause, which would keep the failed attempt's arrays.
        row = dataclasses.replace(row, batch_size=row.batch_size // 2)
    print(json.dumps(measured))


def tiny(row: Row) -> Row:
    """Returns the same row, small enough for a rehearsal on a CPU."""
    return dataclasses.replace(row, side=128 if row.side > 300 else row.side // 2, batch_size=2)


def experiment_of(row: Row, *overrides: str) -> schema.Experiment:
    """Returns the experiment of a row."""
    settings = [f"train.precision={row.precision}", f"train.batch_size={row.batch_size}"]
    experiment = resolve(row.recipe, changes_of([*settings, *overrides])).experiment
    # The side that is named, whatever the recipe's own resizer would pad it to.
    resizer = schema.FixedShapeResizer(height=row.side, width=row.side)
    return dataclasses.replace(
        experiment, model=dataclasses.replace(experiment.model, resizer=resizer)
    )


def _measure(row: Row, seconds: float) -> dict[str, Any]:
    step = TrainStep(experiment_of(row), row.batch_size)
    for _ in range(_WARM_UP):
        jax.block_until_ready(step.dispatch())
    steps, began = 0, time.perf_counter()
    before = None
    while time.perf_counter() - began < seconds or steps < _WARM_UP:
        _, metrics = step.dispatch()
        # As in training: the host looks at a step while the next one runs.
        jax.block_until_ready(before)
        before, steps = metrics, steps + 1
    jax.block_until_ready(before)
    taken = (time.perf_counter() - began) / steps
    return {
        "batch": row.batch_size,
        "images_per_second": row.batch_size / taken,
        "ms": 1e3 * taken,
        "flops_per_second": 3 * row.batch_size * forward_flops(step.detector) / taken,
        "compiling": step.compiling,
        "memory": peak_memory().nbytes,
    }


def _measure_real(row: Row, seconds: float) -> dict[str, Any]:
    """Trains from records as anybody would; the speed is the loop's own."""
    small = seconds < 1
    with tempfile.TemporaryDirectory() as folder:
        data, model = Path(folder) / "data", Path(folder) / "model"
        low, high = (96, 128) if small else _SIDES
        count = 16 if small else _SCENES
        write_scenes(data, train=count, val=1, min_side=low, max_side=high)
        steps = 4 if small else max(round(seconds * 4), 32)
        experiment = experiment_of(
            row,
            f"data.train.paths={data}/train.record-*",
            f"data.train.label_map={data}/label_map.pbtxt",
            "data.evaluation.paths=[]",
            "data.cache_images=true",
            f"model.num_classes={_CLASSES}",
            f"train.steps={steps}",
            f"train.log_every={max(steps // 4, 1)}",
            "train.evaluate_every=0",
            "train.optimizer.schedule.kind=constant",
            "train.optimizer.schedule.learning_rate=0.0001",
            "train.fine_tune.checkpoint=''",
        )
        outcome = train(experiment, model)
    return {
        "batch": row.batch_size,
        "images_per_second": outcome.images_per_second,
        "ms": 1e3 * row.batch_size / outcome.images_per_second,
        "memory": outcome.peak_memory.nbytes if outcome.peak_memory else 0,
    }


if __name__ == "__main__":
    main()
