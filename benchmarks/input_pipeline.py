"""Images per second of the input pipeline: 640x480 JPEG -> 300x300 with flip and crop.

    python benchmarks/input_pipeline.py [--seconds 3]

Everything is measured on one core first, with one loader thread, and the whole pipeline then on
all cores. On one core the clock is CPU time, so that a busy machine does not count against the
program; the last column has what the wall clock says. The peers run in between, on the same files:
OpenCV and Pillow, decode and plain resize without records, augmentation or boxes. Their resizing is
not ours (half-pixel centres; Pillow averages), so they say what the machine can do, not what we
should return.
"""

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.dataset import Dataset, open_dataset
from stillbox.inputs.decode import decode_image
from stillbox.inputs.loader import TrainLoader
from stillbox.inputs.randomness import sample_generator
from stillbox.inputs.resize import resize_into
from stillbox.records.example import Example
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer

IMAGES, BYTES, GOAL = 64, 118_000, 300
AUGMENTATIONS = (schema.RandomHorizontalFlip(), schema.SsdRandomCrop())


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


def write_records(folder: Path) -> Dataset:
    rng = np.random.default_rng(0)
    label_map = LabelMap.from_names(["thing"])
    with tfrecord_writer(folder / "images.record") as write:
        for number in range(IMAGES):
            count = int(rng.integers(1, 15))
            corners = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4)
            example = Example(
                image_id=str(number),
                encoded=draw_jpeg(number),
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
    records = schema.Records(
        paths=(str(folder / "images.record"),), label_map=str(folder / "labels.pbtxt")
    )
    return open_dataset(schema.Data(), records, schema.OneStage(num_classes=1))


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


def loader_rate(data: Dataset, workers: int, seconds: float) -> Rate:
    loader = TrainLoader(
        data, augmentations=AUGMENTATIONS, batch_size=16, workers=workers, prefetch=2
    )
    batches = loader.iterate()
    for _ in range(4):
        next(batches)
    result = rate(lambda _: len(next(batches).images), seconds)
    batches.close()
    return result


def parts(data: Dataset) -> dict[str, Callable[[int], int]]:
    """Each part of the pipeline alone, and the peers: image number -> images done."""
    files = [data.source.example(number).encoded for number in range(IMAGES)]  # type: ignore[union-attr]
    samples = [data.load(number) for number in range(IMAGES)]
    crops = [
        apply_augmentations(AUGMENTATIONS, sample, sample_generator(0, 0, number)).image
        for number, sample in enumerate(samples)
    ]
    canvas = np.empty((300, 300, 3), np.float32)
    resizer = data.resizer

    def done(_: object) -> int:
        return 1

    return {
        "record -> example": lambda n: done(data.source.example(n % IMAGES)),
        "decode": lambda n: done(decode_image(files[n % IMAGES])),
        "flip + crop": lambda n: done(
            apply_augmentations(AUGMENTATIONS, samples[n % IMAGES], sample_generator(0, 1, n))
        ),
        "resize a crop (exact TF1 bilinear)": lambda n: done(
            resize_into(crops[n % IMAGES], resizer, canvas)
        ),
        "resize a whole image": lambda n: done(
            resize_into(samples[n % IMAGES].image, resizer, canvas)
        ),
        "peer: OpenCV decode + resize": lambda n: done(opencv(files[n % IMAGES])),
        "peer: Pillow decode + resize": lambda n: done(pillow(files[n % IMAGES])),
    }


def opencv(data: bytes) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return cv2.resize(image, (300, 300), interpolation=cv2.INTER_LINEAR).astype(np.float32)


def pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        small = image.convert("RGB").resize((300, 300), Image.Resampling.BILINEAR)
    return np.asarray(small, np.float32)


def report(name: str, result: Rate) -> None:
    print(f"{name:38s}{result.cpu:10.0f}{1000 / result.cpu:10.2f}{result.wall:10.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        data = write_records(Path(folder))
        size = sum(len(data.source.read(number)) for number in range(IMAGES)) / IMAGES
        print(f"{IMAGES} JPEGs of 640x480, {size / 1000:.0f} kB; OpenCV {cv2.__version__}")
        print(f"{'one core':38s}{'images/s':>10s}{'ms/image':>10s}{'by wall':>10s}")
        os.sched_setaffinity(0, {cores[-1]})
        for name, work in parts(data).items():
            report(name, rate(work, seconds / 2))
        one = loader_rate(data, 1, seconds)
        report("whole pipeline, 1 thread", one)
        print(f"goal {GOAL} images/s for a core: {one.cpu / GOAL:.0%}")
        os.sched_setaffinity(0, cores)
        print(f"all {len(cores)} cores (images/s and ms of CPU time of all threads)")
        report(f"whole pipeline, {len(cores)} threads", loader_rate(data, len(cores), seconds))


if __name__ == "__main__":
    main()
