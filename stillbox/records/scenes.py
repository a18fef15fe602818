"""The embedded data: drawn scenes, written as an ordinary data set.

Nothing is ever downloaded, and still there is something to learn from: sharded TFRecords, a label
map, COCO JSON and the images as files. Scene n of a set is a function of (seed, set, n), so a
longer set begins with the shorter one, and two runs write the same bytes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.records.example import Example
from stillbox.records.label_map import LabelMap
from stillbox.records.scenes_drawing import SIDES, Scene, draw_scene
from stillbox.records.scenes_shapes import SHAPES
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import ShardedWriter

_JPEG_QUALITY = 90
_RECORDS_PER_SHARD = 200
# Image ids of the second set start here, so that the two can be put together.
_ID_STRIDE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class SceneSet:
    """A set that was written."""

    records: tuple[Path, ...]
    """TFRecord shards."""
    annotations: Path
    """COCO JSON."""
    images: int
    """Scenes in the set."""
    empty: int
    """Scenes without any box."""
    boxes: dict[str, int]
    """Boxes of every class."""
    hidden: int
    """Objects without a box because too little of them can be seen."""


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """Everything that was written."""

    label_map: Path
    """Label map of both sets."""
    train: SceneSet
    """What a model learns from."""
    val: SceneSet
    """What it is scored on."""


def scenes_label_map() -> LabelMap:
    """Returns the label map of the embedded data."""
    return LabelMap.from_names(SHAPES)


def write_scenes(
    output: str | Path,
    *,
    seed: int = 0,
    train: int = 600,
    val: int = 100,
    min_side: int = SIDES[0],
    max_side: int = SIDES[1],
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Scenes:
    """Draws and writes both sets.

    In `output`: `label_map.pbtxt`, `train.record-*` and `val.record-*`, `annotations/train.json`
    and `val.json`, and the images under `images/train` and `images/val`.

    Args:
        output: folder; made if absent.
        seed: another seed draws other scenes.
        train: scenes of the training set.
        val: scenes of the evaluation set.
        min_side: least height and width of a scene, in pixels.
        max_side: greatest height and width of a scene, in pixels.
        overwrite: replace sets that are there already.
        progress: told the number of scenes done and to do.

    Raises:
        UserError: a set would be empty, the sides make no sense, or a set is there already.
    """
    if train < 1 or val < 1:
        raise UserError(
            f"a set needs a scene: {train} for training, {val} for evaluation",
            fix="give both --train and --val at least 1",
        )
    if not 32 <= min_side <= max_side:
        raise UserError(
            f"sides from {min_side} to {max_side} pixels leave no room for objects",
            fix="use at least 32 pixels, and a greatest side that is no smaller than the least",
        )
    output = Path(output)
    label_map = scenes_label_map()

    def count(done: int) -> None:
        if progress is not None:
            progress(done, train + val)

    def draw(which: int, index: int) -> Scene:
        rng = np.random.default_rng([seed, which, index])
        return draw_scene(rng, min_side=min_side, max_side=max_side)

    sets = []
    for which, (name, size) in enumerate((("train", train), ("val", val))):
        shards = -(-size // _RECORDS_PER_SHARD)
        with ShardedWriter(output, name, shards, overwrite=overwrite) as writer:
            tally = _SetWriter(output, name, label_map, first_id=which * _ID_STRIDE + 1)
            for index in range(size):
                writer.write(tally.add(draw(which, index)))
                count(which * train + index + 1)
        sets.append(tally.finish())
    path = output / "label_map.pbtxt"
    _write_text(path, label_map.to_text())
    return Scenes(label_map=path, train=sets[0], val=sets[1])


class _SetWriter:
    """Writes the images of one set and gathers its annotations."""

    def __init__(self, output: Path, name: str, label_map: LabelMap, *, first_id: int) -> None:
        self.output, self.name, self.label_map, self.first_id = output, name, label_map, first_id
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.hidden = 0
        self.empty = 0
        (output / "images" / name).mkdir(parents=True, exist_ok=True)

    def add(self, scene: Scene) -> bytes:
        """Writes the image and returns the record."""
        height, width = scene.image.shape[:2]
        image_id = self.first_id + len(self.images)
        filename = f"{self.name}_{len(self.images):05d}.jpg"
        encoded = encode_jpeg(scene.image)
        (self.output / "images" / self.name / filename).write_bytes(encoded)
        self.images.append(
            {"id": image_id, "file_name": filename, "width": width, "height": height}
        )
        self._annotate(image_id, scene)
        self.hidden += scene.dropped
        self.empty += len(scene.boxes) == 0
        count = len(scene.boxes)
        example = Example(
            image_id=str(image_id),
            encoded=encoded,
            filename=filename,
            height=height,
            width=width,
            boxes=(scene.boxes / [height, width, height, width]).astype(np.float32),
            class_ids=scene.class_ids,
            weights=np.ones(count, np.float32),
            is_crowd=np.zeros(count, np.bool_),
            difficult=np.zeros(count, np.bool_),
            truncated=np.zeros(count, np.bool_),
            area=scene.areas,
        )
        return serialize_example(example, self.label_map)

    def _annotate(self, image_id: int, scene: Scene) -> None:
        for (ymin, xmin, ymax, xmax), class_id, area in zip(
            scene.boxes.tolist(), scene.class_ids.tolist(), scene.areas.tolist(), strict=True
        ):
            self.annotations.append(
                {
                    "id": len(self.annotations) + 1,
                    "image_id": image_id,
                    "category_id": class_id,
                    "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
                    "area": area,
                    "iscrowd": 0,
                }
            )

    def finish(self) -> SceneSet:
        """Writes the COCO JSON and returns what the set holds."""
        items = self.label_map.items
        path = self.output / "annotations" / f"{self.name}.json"
        content = {
            "info": {"description": f"stillbox scenes, {self.name}"},
            "images": self.images,
            "annotations": self.annotations,
            "categories": [{"id": item.id, "name": item.name} for item in items],
        }
        _write_text(path, json.dumps(content))
        ids = [annotation["category_id"] for annotation in self.annotations]
        return SceneSet(
            records=tuple(sorted(self.output.glob(f"{self.name}.record-*-of-*"))),
            annotations=path,
            images=len(self.images),
            empty=self.empty,
            boxes={item.name: ids.count(item.id) for item in items},
            hidden=self.hidden,
        )


def encode_jpeg(image: NDArray[np.uint8]) -> bytes:
    """Returns an RGB image `[H, W, 3]` as JPEG."""
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    _, encoded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    return bytes(encoded)


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
