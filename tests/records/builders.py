"""Small images, examples and record files for the tests."""

import gzip
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from stillbox.records.example import Example
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer

CAT_DOG = LabelMap.from_names(["cat", "dog"])


def image_bytes(
    height: int = 40, width: int = 60, kind: str = "JPEG", mode: str = "RGB", orientation: int = 0
) -> bytes:
    """An image that is dark on its left and bright on its right."""
    ramp = np.tile(np.linspace(0, 255, width, dtype=np.uint8), (height, 1))
    image = Image.fromarray(ramp).convert(mode)
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"exif": exif} if orientation else {}))
    return buffer.getvalue()


def make_example(
    boxes: Sequence[Sequence[float]] = ((0.1, 0.2, 0.5, 0.6),),
    class_ids: Sequence[int] = (1,),
    **values: object,
) -> Example:
    defaults: dict[str, object] = {
        "image_id": "7",
        "encoded": image_bytes(),
        "filename": "7.jpg",
        "height": 40,
        "width": 60,
        "boxes": np.array(boxes, np.float32).reshape(-1, 4),
        "class_ids": np.array(class_ids, np.int32),
    }
    return Example(**(defaults | values))


def write_records(path: Path, payloads: Sequence[bytes | Example], *, gz: bool = False) -> Path:
    with tfrecord_writer(path) as write:
        for payload in payloads:
            if isinstance(payload, Example):
                payload = serialize_example(payload, CAT_DOG)
            write(payload)
    if gz:
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return path


def read_records(path: Path) -> list[bytes]:
    """Reads the payloads of a sound file without its checksums and without an index."""
    data, payloads = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        payloads.append(data[12 : 12 + length])
        data = data[16 + length :]
    return payloads
