"""Opens, orders and fetches tiny records, for `growth.py`: prints its row as JSON.

    python benchmarks/growth_records.py COUNT

Resident memory is what the process has more of than before the set was opened, after the order of
an epoch was made and some records were fetched.
"""

import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from stillbox.experiment import schema
from stillbox.experiment.schema import Data, Records
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.loader import TrainLoader
from stillbox.records.example import Example
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import frame

_Result = TypeVar("_Result")

_FETCHED = 200
_BATCH = 8


def main() -> None:
    """Prints the row."""
    count = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(here / "cache")
        data, model = _write(here, count)
        row = _measure(data, model)
    print(json.dumps(row))


def _measure(data: Data, model: schema.Model) -> dict[str, float]:
    open_dataset(data, data.train, model)  # imports what it needs
    (index,) = Path(os.environ["XDG_CACHE_HOME"]).glob("**/*.index")
    index.unlink()
    before = _resident()
    indexed, _ = _timed(lambda: open_dataset(data, data.train, model))
    opened, dataset = _timed(lambda: open_dataset(data, data.train, model))
    loader = TrainLoader(dataset, batch_size=_BATCH, workers=0)
    first, _ = _timed(lambda: loader.batch(0))
    places = np.random.default_rng(0).integers(0, len(dataset), _FETCHED).tolist()
    fetched, _ = _timed(lambda: [dataset.load(place) for place in places])
    return {
        "first opening, s": indexed,
        "opening, s": opened,
        "first batch, s": first,
        "fetch, ms": 1e3 * fetched / _FETCHED,
        "resident, MiB": (_resident() - before) / 2**20,
    }


def _timed(function: Callable[[], _Result]) -> tuple[float, _Result]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _write(folder: Path, count: int) -> tuple[Data, schema.Model]:
    (folder / "labels.pbtxt").write_text('item { id: 1 name: "disc" }\n')
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "PNG")
    example = Example(
        image_id="1",
        filename="1.png",
        encoded=stream.getvalue(),
        height=16,
        width=16,
        boxes=np.array([[0.1, 0.2, 0.5, 0.6]], np.float32),
        class_ids=np.ones(1, np.int32),
        weights=np.ones(1, np.float32),
        is_crowd=np.zeros(1, np.bool_),
        difficult=np.zeros(1, np.bool_),
        truncated=np.zeros(1, np.bool_),
    )
    record = frame(serialize_example(example))
    path = folder / "train.record"
    with path.open("wb") as file:
        for _ in range(count):
            file.write(record)
    records = Records(paths=(str(path),), label_map=str(folder / "labels.pbtxt"))
    resizer = schema.FixedShapeResizer(height=16, width=16)
    return Data(train=records, cache_images=False), schema.OneStage(num_classes=1, resizer=resizer)


if __name__ == "__main__":
    main()
