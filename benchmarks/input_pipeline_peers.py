"""Images a second of another library's input pipeline; run by `input_pipeline.py`.

    python input_pipeline_peers.py torchvision|tensorflow ssd|retinanet SECONDS RECORD SET.npz

Runs on one core in its environment, and prints one JSON object: images a second of CPU time and
of the clock by the name of each way to write the pipeline. torchvision has its JPEG files and boxes
in memory; TensorFlow reads and parses the records.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

BATCH, MAX_BOXES = 16, 100
SIDE = {"ssd": 300, "retinanet": 640}
SCALES = (0.8, 1.2)
COVERED = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Shares of an object that one of SSD's crops covers at least."""
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
Batches = Iterator[Any]


def main() -> None:
    """Prints the rates of a peer."""
    peer, model, seconds, record, path = sys.argv[1:]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    make = {"torchvision": with_torchvision, "tensorflow": with_tensorflow}[peer]
    rates = {name: rate(batches, float(seconds)) for name, batches in make(model, record, path)}
    print(json.dumps(rates))


def rate(batches: Batches, seconds: float) -> tuple[float, float]:
    """Returns the images a second that an endless iterator yields, by both clocks."""
    for _ in range(4):
        next(batches)
    images, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        next(batches)
        images += BATCH
    return images / (time.process_time() - cpu), images / (time.perf_counter() - wall)


def with_torchvision(model: str, record: str, path: str) -> Iterator[tuple[str, Batches]]:
    """Yields the transforms of torchvision's references for this model, v2, on tensors of uint8."""
    import torch
    import torchvision
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with np.load(path) as content:
        stored = {name: content[name] for name in content.files}
    files = [
        torch.from_numpy(part.copy()) for part in np.split(stored["bytes"], stored["ends"][:-1])
    ]
    side = SIDE[model]
    fill = {tv_tensors.Image: [round(value) for value in MEAN], "others": 0}
    jitter = [
        v2.ScaleJitter((side, side), SCALES, antialias=False),
        v2.RandomCrop((side, side), pad_if_needed=True, fill=fill),
    ]
    shape = [v2.Resize((side, side), antialias=False)]
    to_float = [
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([m / 255 for m in MEAN], [s / 255 for s in STD]),
    ]
    ways = {
        "ssd": {
            "RandomIoUCrop": [v2.RandomIoUCrop(), *shape],
            "RandomResizedCrop": [
                v2.RandomResizedCrop(side, scale=(0.1, 1), ratio=(0.5, 2), antialias=False)
            ],
        },
        "retinanet": {"ScaleJitter": jitter},
    }[model]

    def sample(number: int, transform: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        image = tv_tensors.Image(torchvision.io.decode_jpeg(files[number]))
        count = stored["counts"][number]
        corners = torch.from_numpy(stored["boxes"][number, :count][:, [1, 0, 3, 2]].copy())
        height, width = image.shape[-2:]
        boxes = tv_tensors.BoundingBoxes(  # type: ignore[call-arg]
            corners * torch.tensor([width, height, width, height]),
            format="XYXY",
            canvas_size=(height, width),
        )
        return transform(image, {"boxes": boxes, "labels": torch.ones(count, dtype=torch.int64)})

    def batches(transform: Callable[..., Any]) -> Batches:
        while True:
            for start in range(0, len(files) - BATCH + 1, BATCH):
                samples = [sample(start + place, transform) for place in range(BATCH)]
                yield (
                    torch.stack([image for image, _ in samples]),
                    [target for _, target in samples],
                )

    for name, augmentations in ways.items():
        for kind, ending in (("uint8", []), ("float32, normalised", to_float)):
            steps = [v2.RandomHorizontalFlip(), *augmentations, v2.SanitizeBoundingBoxes(), *ending]
            title = f"torchvision {torchvision.__version__}, v2.{name}, {kind}"
            yield title, batches(v2.Compose(steps))


def with_tensorflow(model: str, record: str, path: str) -> Iterator[tuple[str, Batches]]:
    """Yields `tf.data` over the records, with the operations of TF1's detectors."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for fused in (False, True) if model == "ssd" else (False,):
        for kind in ("float32", "uint8"):
            data = tf.data.TFRecordDataset(record).cache().repeat()
            options = tf.data.Options()
            options.threading.private_threadpool_size = 1
            options.threading.max_intra_op_parallelism = 1
            work = _tensorflow_sample(tf, model, fused=fused, kind=kind)
            data = data.map(work).batch(BATCH, drop_remainder=True).with_options(options)
            how = ", decode_and_crop_jpeg" if fused else ""
            yield f"tf.data {tf.__version__}{how}, {kind}", iter(data)


def _tensorflow_sample(tf: Any, model: str, *, fused: bool, kind: str) -> Callable[[Any], Any]:  # noqa: ANN401
    side = SIDE[model]
    features = {"image/encoded": tf.io.FixedLenFeature((), tf.string)} | {
        f"image/object/bbox/{edge}": tf.io.VarLenFeature(tf.float32)
        for edge in ("ymin", "xmin", "ymax", "xmax")
    }

    def read(data: Any) -> tuple[Any, Any]:  # noqa: ANN401
        parsed = tf.io.parse_single_example(data, features)
        edges = [
            tf.sparse.to_dense(parsed[f"image/object/bbox/{edge}"])
            for edge in ("ymin", "xmin", "ymax", "xmax")
        ]
        return parsed["image/encoded"], tf.stack(edges, 1)

    def flip(image: Any, boxes: Any) -> tuple[Any, Any]:  # noqa: ANN401
        ymin, xmin, ymax, xmax = tf.unstack(boxes, axis=1)
        return tf.cond(
            tf.random.uniform(()) < 0.5,
            lambda: (image[:, ::-1], tf.stack([ymin, 1 - xmax, ymax, 1 - xmin], 1)),
            lambda: (image, boxes),
        )

    def crop(encoded: Any, boxes: Any) -> tuple[Any, Any]:  # noqa: ANN401
        image = None if fused else tf.io.decode_jpeg(encoded, 3)
        shape = tf.io.extract_jpeg_shape(encoded) if fused else tf.shape(image)
        begin, size, window = tf.image.sample_distorted_bounding_box(
            shape,
            tf.clip_by_value(boxes, 0, 1)[None],
            min_object_covered=tf.gather(COVERED, tf.random.uniform((), 0, 7, tf.int32)),
            aspect_ratio_range=(0.5, 2),
            area_range=(0.1, 1),
            use_image_if_no_bounding_boxes=True,
        )
        if fused:
            image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), 3)
        else:
            image = tf.slice(image, begin, size)
        frame = window[0, 0]
        start, extent = tf.tile(frame[:2], [2]), tf.tile(frame[2:] - frame[:2], [2])
        moved = tf.clip_by_value((boxes - start) / extent, 0, 1)
        kept = tf.reduce_prod((moved * extent)[:, 2:] - (moved * extent)[:, :2], 1)
        area = tf.reduce_prod(boxes[:, 2:] - boxes[:, :2], 1)
        return image, tf.boolean_mask(moved, kept >= 0.3 * area)

    def jitter(image: Any, boxes: Any) -> tuple[Any, Any]:  # noqa: ANN401
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        scale = tf.random.uniform((), *SCALES) * side / tf.reduce_max(size)
        whole = tf.cast(tf.round(size * scale), tf.int32)
        room = tf.maximum(whole - side, 0)
        offset = tf.cast(tf.random.uniform((2,)) * tf.cast(room, tf.float32), tf.int32)
        resized = tf.image.resize(image, whole)[offset[0] :, offset[1] :][:side, :side] - MEAN
        padding = side - tf.shape(resized)[:2]
        padded = tf.pad(resized, [[0, padding[0]], [0, padding[1]], [0, 0]])
        corners = boxes * tf.tile(tf.cast(whole, tf.float32), [2])
        corners = tf.clip_by_value(corners - tf.tile(tf.cast(offset, tf.float32), [2]), 0, side)
        return padded + MEAN, corners / side

    def sample(data: Any) -> tuple[Any, Any]:  # noqa: ANN401
        encoded, boxes = read(data)
        if model == "ssd":
            image, boxes = flip(*crop(encoded, boxes))
            image = tf.image.resize(image, (side, side))
        else:
            image, boxes = jitter(*flip(tf.io.decode_jpeg(encoded, 3), boxes))
        image = tf.ensure_shape(image, (side, side, 3))
        if kind == "uint8":
            image = tf.cast(tf.round(image), tf.uint8)
        rows = MAX_BOXES - tf.shape(boxes)[0]
        return image, tf.pad(boxes, [[0, rows], [0, 0]])

    return sample


if __name__ == "__main__":
    main()
