"""Small data sets, written as ordinary records."""

import io
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from stillbox.experiment import schema
from stillbox.inputs.dataset import Dataset, open_dataset
from stillbox.records.example import Example
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer

LABELS = 'item { id: 1 name: "disc" }\nitem { id: 2 name: "ring" }\nitem { id: 4 name: "star" }\n'


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth picture that survives JPEG, different everywhere."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def jpeg(image: np.ndarray, quality: int = 95) -> bytes:
    return cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def saved(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def example(
    number: int = 0,
    boxes=((0.1, 0.2, 0.5, 0.6),),
    class_ids=None,
    *,
    size=(40, 60),
    encoded: bytes | None = None,
    crowds=(),
    claimed=None,
) -> Example:
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    height, width = claimed or size
    return Example(
        image_id=f"image-{number}",
        filename=f"{number}.jpg",
        encoded=jpeg(picture(*size, seed=number)) if encoded is None else encoded,
        height=height,
        width=width,
        boxes=boxes,
        class_ids=np.array([1] * len(boxes) if class_ids is None else class_ids, np.int32),
        is_crowd=np.isin(np.arange(len(boxes)), crowds),
    )


def write(folder: Path, examples) -> schema.Records:
    """Writes records and label map and returns what names them."""
    with tfrecord_writer(folder / "data.record") as write:
        for record in examples:
            write(serialize_example(record))
    (folder / "labels.pbtxt").write_text(LABELS)
    return schema.Records(
        paths=(str(folder / "data.record"),), label_map=str(folder / "labels.pbtxt")
    )


MODEL = schema.OneStage(num_classes=4, resizer=schema.FixedShapeResizer(height=24, width=32))


def dataset(
    folder: Path, examples, *, data=None, model: schema.OneStage = MODEL, **changes
) -> Dataset:
    """Writes and opens a set; `changes` are fields of `schema.Records`."""
    from dataclasses import replace

    records = replace(write(folder, examples), **changes)
    return open_dataset(data or schema.Data(), records, model)
