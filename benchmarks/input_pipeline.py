"""Images per second of the input pipeline for SSD (300) and RetinaNet (640), beside its peers.

    python benchmarks/input_pipeline.py [--task ssd] [--cores 1 2 16 64 | --processes 1 2]

Files are JPEG of 640 x 480. SSD: horizontal flip, SSD's random crop, resize to 300 x 300.
RetinaNet: horizontal flip, scale jitter from 0.8 to 1.2, resize, pad to 640 x 640. Boxes go with
the images, 16 images are a batch. The peers are `tf.data` with the same operations and
torchvision's transforms v2, in environments of their own in the cache folder.

Everything runs on one core, all take turns, and the figure is the median of the rounds. The clock
is CPU time, so that a busy machine counts less; the last column has what the wall clock says.

`--cores` prints rates of the whole pipeline on more cores instead. Up to the cores of this machine
they are measured. All numbers are modelled as well: where an image is decoded and resized, which
OpenCV and NumPy do without Python's lock, the thread sleeps as long as this takes on one core. What
is left, with the lock and its transfer from thread to thread, runs. The model leaves out the
bandwidth of memory, and a clock that falls with the load.

`--processes` prints the rates of threads and of `data.processes`, and how much a process of
training could take from others that make nothing and answer at once.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import cv2
import numpy as np
from environments import ask_peer, peer_python
from measuring import machine, show
from numpy.typing import NDArray
from rich.table import Table
from suppression import PEERS

from stillbox.devices.process import keep_freed_memory
from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.dataset import Dataset, open_dataset
from stillbox.inputs.decode import decode_image
from stillbox.inputs.loader import (
    TrainLoader,
    open_train_loader,
    resize_generator,
    sample_generator,
)
from stillbox.inputs.processes import InputProcesses
from stillbox.inputs.resize import place_image, resize_into
from stillbox.records.example import Example
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer

IMAGES, BYTES, FEED = 64, 118_000, 480
"""Files, bytes of each, and images a second that one H200 takes of RetinaNet (640)."""


class Task(NamedTuple):
    """What becomes of an image."""

    resizer: schema.Resizer
    augmentations: tuple[schema.Augmentation, ...]


TASKS = {
    "ssd": Task(
        schema.FixedShapeResizer(), (schema.RandomHorizontalFlip(), schema.SsdRandomCrop())
    ),
    "retinanet": Task(
        schema.ScaleJitterResizer(
            height=640, width=640, min_scale=0.8, max_scale=1.2, pad_value=(123.675, 116.28, 103.53)
        ),
        (schema.RandomHorizontalFlip(),),
    ),
}


def draw_jpeg(seed: int) -> bytes:
    """Returns a textured 640x480 JPEG of about 118 kB: smooth shapes, and noise until it is so."""
    rng = np.random.default_rng(seed)
    shapes = cv2.resize(rng.integers(0, 256, (12, 16, 3), np.uint8), (640, 480)).astype(np.float32)
    noise = rng.normal(0, 1, (480, 640, 1)).astype(np.float32)
    low, high = 0.0, 100.0
    for _ in range(8):
        strength = (low + high) / 2
        pixels = np.clip(shapes + strength * noise, 0, 255).astype(np.uint8)
        data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
        low, high = (strength, high) if len(data) < BYTES else (low, strength)
    return data


def write_records(folder: Path, files: Sequence[bytes]) -> schema.Records:
    """Writes records of JPEG files, with 1 to 14 boxes each."""
    rng = np.random.default_rng(0)
    label_map = LabelMap.from_names(["thing"])
    with tfrecord_writer(folder / "images.record") as write:
        for number, encoded in enumerate(files):
            count = int(rng.integers(1, 15))
            corners = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4)
            example = Example(
                image_id=str(number),
                encoded=encoded,
                boxes=corners.astype(np.float32),
                class_ids=np.ones(count, np.int32),
                weights=np.ones(count, np.float32),
                is_crowd=np.zeros(count, np.bool_),
                difficult=np.zeros(count, np.bool_),
                truncated=np.zeros(count, np.bool_),
                area=np.full(count, np.nan, np.float32),
            )
            write(serialize_example(example, label_map))
    (folder / "labels.pbtxt").write_text(label_map.to_text())
    return schema.Records(
        paths=(str(folder / "images.record"),), label_map=str(folder / "labels.pbtxt")
    )


def open_task(records: schema.Records, task: Task) -> Dataset:
    """Opens records for a model with the task's resizer."""
    return open_dataset(
        schema.Data(), records, schema.OneStage(num_classes=90, resizer=task.resizer)
    )


class Rate(NamedTuple):
    """Images a second, by both clocks."""

    cpu: float
    wall: float


def rate(work: Callable[[int], int], seconds: float) -> Rate:
    """Calls `work(0), work(1), ...`, each of which returns how many images it has done."""
    work(0)
    images, number = 0, 0
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        images += work(number)
        number += 1
    return Rate(images / (time.process_time() - cpu), images / (time.perf_counter() - wall))


def loader_rate(
    records: schema.Records,
    task: Task,
    seconds: float,
    batch_size: int = 16,
    pixels: str = "float32",
    *,
    reduced_decoding: bool = False,
    workers: int = 1,
) -> Rate:
    """Returns the rate of the whole pipeline with so many threads."""
    data = open_task(records, task)
    loader = TrainLoader(
        data,
        augmentations=task.augmentations,
        batch_size=batch_size,
        workers=workers,
        pixels=pixels,
        reduced_decoding=reduced_decoding,
    )
    return taken_rate(loader, seconds)


def experiment_of(
    records: schema.Records, task: Task, pixels: str, processes: int
) -> schema.Experiment:
    """Returns what `open_train_loader` reads, with batches of 16."""
    return schema.Experiment(
        model=schema.OneStage(num_classes=90, resizer=task.resizer),
        data=schema.Data(
            train=records,
            pixels=pixels,  # type: ignore[arg-type]
            processes=processes,
        ),
        train=schema.Training(batch_size=16, steps=0, augmentations=task.augmentations),
    )


def idle_loader(experiment: schema.Experiment) -> TrainLoader:
    """Returns a loader that fills no row."""
    alone = replace(experiment, data=replace(experiment.data, processes=0))
    loader = open_train_loader(alone, workers=1)
    loader._fill_rows = lambda *_: None  # type: ignore[method-assign]
    return loader


def processes_table(records: schema.Records, name: str, seconds: float, counts: list[int]) -> Table:
    """Returns a table of rates by the wall clock, of threads and of processes."""
    cores = len(os.sched_getaffinity(0))
    title = f"{name}, images/s of {cores} cores; {machine()}"
    table = Table("what makes batches", "float32", "uint8", title=title)

    def add_row(who: str, processes: int, threads: int, *, idle: bool = False) -> None:
        rates = []
        for pixels in ("float32", "uint8"):
            experiment = experiment_of(records, TASKS[name], pixels, processes)
            loader = open_train_loader(experiment, workers=threads, prepare=keep_freed_memory)
            if idle:
                # The function is found by its module, which this program is not.
                opening = partial(import_module("input_pipeline").idle_loader, experiment)
                loader._processes = InputProcesses(processes, opening)
            rates.append(f"{taken_rate(loader, seconds).wall:.0f}")
        table.add_row(who, *rates)

    add_row(f"{cores} threads", 0, cores)
    for count in counts:
        threads = -(-cores // count)
        add_row(f"{count} processes, {threads} threads each", count, threads)
    add_row("processes that make nothing", cores, 1, idle=True)
    return table


def taken_rate(loader: TrainLoader, seconds: float) -> Rate:
    """Returns the rate at which batches come, after the first ones."""
    batches = loader.iterate()
    for _ in range(8):
        next(batches)
    result = rate(lambda _: len(next(batches).images), seconds)
    batches.close()
    return result


def parts(records: schema.Records, task: Task) -> dict[str, Callable[[int], int]]:
    """Each part of the pipeline alone: image number -> images done."""
    data, augmentations = open_task(records, task), task.augmentations
    files = [data.source.example(number).encoded for number in range(IMAGES)]  # type: ignore[union-attr]
    stored = [data.open(number) for number in range(IMAGES)]

    def moved(number: int) -> Any:  # noqa: ANN401
        rng = sample_generator(0, number, number % IMAGES)
        return apply_augmentations(augmentations, stored[number % IMAGES], rng)  # type: ignore[arg-type]

    windows = [moved(number) for number in range(IMAGES)]
    pixels = [window.decoded().image for window in windows]
    floats = np.empty((*data.resizer.input_size, 3), np.float32)
    rounded = floats.astype(np.uint8)

    def resize(number: int, out: NDArray[Any]) -> int:
        image = pixels[number % IMAGES]
        rng = resize_generator(0, number, number % IMAGES)
        placement = place_image((image.shape[0], image.shape[1]), data.resizer, rng)
        return done(resize_into(image, data.resizer, out, placement))

    def done(_: object) -> int:
        return 1

    return {
        "read and parse a record": lambda n: done(data.source.example(n % IMAGES)),
        "flip and crop, boxes and window": lambda n: done(moved(n)),
        "decode a whole image": lambda n: done(decode_image(files[n % IMAGES])),
        "decode, what the crop leaves": lambda n: done(windows[n % IMAGES].decoded()),
        "resize and pad, float32": lambda n: resize(n, floats),
        "resize and pad, uint8": lambda n: resize(n, rounded),
    }


def measured(records: schema.Records, name: str, seconds: float) -> dict[str, Rate]:
    """Returns the rates of one round, ours and the peers'."""
    ours = {
        f"ours, {pixels}": loader_rate(records, TASKS[name], seconds, pixels=pixels)
        for pixels in ("float32", "uint8")
    }
    return ours | peer_rates(records, name, seconds)


def median(rates: Sequence[Rate]) -> Rate:
    """Returns the medians of both clocks."""
    return Rate(*(statistics.median(clock) for clock in zip(*rates, strict=True)))


def peer_rates(records: schema.Records, name: str, seconds: float) -> dict[str, Rate]:
    """Returns the rates of the peers that can be had."""
    measured = {}
    for peer, requirements in PEERS.items():
        python = peer_python(*requirements)
        if python is not None:
            words = peer, name, str(seconds), records.paths[0]
            answer = ask_peer(python, "input_pipeline_peers.py", words, **_arrays(records))
            measured |= {title: Rate(*rates) for title, rates in answer.items()}
    return measured


def _arrays(records: schema.Records) -> dict[str, NDArray[Any]]:
    source = open_task(records, TASKS["ssd"]).source
    examples = [source.example(number) for number in range(IMAGES)]
    boxes = np.zeros((IMAGES, 100, 4), np.float32)
    for row, example in zip(boxes, examples, strict=True):
        row[: len(example.boxes)] = example.boxes  # type: ignore[union-attr]
    return {
        "bytes": np.frombuffer(b"".join(e.encoded for e in examples), np.uint8),  # type: ignore[union-attr]
        "ends": np.cumsum([len(e.encoded) for e in examples]),  # type: ignore[union-attr]
        "counts": np.array([len(e.boxes) for e in examples]),  # type: ignore[union-attr]
        "boxes": boxes,
    }


def rates_table(title: str, rates: dict[str, Rate]) -> Table:
    """Returns a table of rates."""
    table = Table("what", title=title)
    for column in ("images/s", "ms/image", "by wall"):
        table.add_column(column, justify="right")
    for name, result in rates.items():
        table.add_row(name, f"{result.cpu:.0f}", f"{1000 / result.cpu:.2f}", f"{result.wall:.0f}")
    return table


def cores_table(records: schema.Records, name: str, seconds: float, cores: list[int]) -> Table:
    """Returns a table of rates by the wall clock, measured and modelled, for numbers of cores."""
    present = sorted(os.sched_getaffinity(0))
    alone = {part: rate(work, seconds / 3) for part, work in parts(records, TASKS[name]).items()}
    decode, resize = (
        1 / alone[part].cpu for part in ("decode, what the crop leaves", "resize and pad, float32")
    )
    table = Table("cores", "measured", "modelled", title=f"{name}, images/s; {machine()}")
    for count in cores:
        # A batch is divided into two chunks for each thread.
        batch_size = max(16, 2 * count)
        measured = ""
        if count <= len(present):
            os.sched_setaffinity(0, set(present[:count]))
            rate = loader_rate(records, TASKS[name], seconds, batch_size, workers=count)
            measured = f"{rate.wall:.0f}"
            os.sched_setaffinity(0, set(present))
        with sleeping(decode, resize):
            modelled = loader_rate(records, TASKS[name], seconds, batch_size, workers=count)
        table.add_row(str(count), measured, f"{modelled.wall:.0f}")
    return table


@contextmanager
def sleeping(decode: float, resize: float) -> Iterator[None]:
    """Replaces decoding and resizing by sleeps of so many seconds."""
    image = np.zeros((480, 640, 3), np.uint8)

    def decoded(*_: object, **__: object) -> NDArray[np.uint8]:
        time.sleep(decode)
        return image

    with (
        mock.patch("stillbox.inputs.sample.decode_image", decoded),
        mock.patch("stillbox.inputs.batching.resize_into", lambda *_: time.sleep(resize)),
    ):
        yield


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", choices=TASKS, help="this one alone")
    parser.add_argument("--processes", nargs="+", type=int, default=[], help="rates of so many")
    parser.add_argument("--cores", nargs="+", type=int, default=[], help="rates on so many")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    keep_freed_memory()  # as every command does
    if not arguments.cores and not arguments.processes:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        records = write_records(Path(folder), [draw_jpeg(number) for number in range(IMAGES)])
        for name in [arguments.task] if arguments.task else TASKS:
            if arguments.processes:
                show(processes_table(records, name, seconds, arguments.processes))
                continue
            if arguments.cores:
                show(cores_table(records, name, seconds, arguments.cores))
                continue
            task = TASKS[name]
            title = f"{name}, one core, OpenCV {cv2.__version__}; {machine()}"
            alone = {part: rate(work, seconds / 3) for part, work in parts(records, task).items()}
            show(rates_table(f"parts of {title}", alone))
            rounds = [measured(records, name, seconds) for _ in range(arguments.rounds)]
            rates = {label: median([each[label] for each in rounds]) for label in rounds[0]}
            show(rates_table(title, rates))
            for label in ("ours, float32", "ours, uint8"):
                print(f"{label}: {FEED} images/s take {FEED / rates[label].cpu:.1f} such cores")


if __name__ == "__main__":
    main()
