"""The demo data set: drawn scenes, written as TFRecord shards, label map, COCO JSON and images.

Nothing is downloaded. Scene n of a set is a function of (seed, set, n): a longer set begins with
the shorter one, and two runs write the same bytes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from stillbox.errors import UserError
from stillbox.records.example import Example
from stillbox.records.files import write_whole
from stillbox.records.label_map import LabelMap
from stillbox.records.scenes_drawing import SIDES, Scene, draw_scene
from stillbox.records.scenes_shapes import SHAPES
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import sharded_writer

_JPEG_QUALITY = 90
_RECORDS_PER_SHARD = 200
# First image id of the second set: the two sets can be merged.
_ID_STRIDE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class SceneSet:
    """A set that was written."""

    annotations: Path
    """COCO JSON."""
    images: int
    empty: int
    """Scenes without any box."""
    boxes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """The training set, the evaluation set and the path of their label map."""

    label_map: Path
    train: SceneSet
    val: SceneSet


def write_scenes(
    output: str | Path,
    *,
    seed: int = 0,
    train: int = 600,
    val: int = 100,
    min_side: int = SIDES[0],
    max_side: int = SIDES[1],
    overwrite: bool = False,
) -> Scenes:
    """Draws and writes a training set and an evaluation set.

    In `output`: `label_map.pbtxt`, `train.record-*` and `val.record-*`, `annotations/train.json`
    and `val.json`, and the images under `images/train` and `images/val`. `train` and `val` are the
    numbers of scenes, whose height and width are `min_side` to `max_side` pixels.

    Raises:
        UserError: a set would be empty, the sides are unusable, or a set exists already.
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
    label_map = LabelMap.from_names(SHAPES)

    def scenes(which: int, count: int) -> Iterator[Scene]:
        for index in range(count):
            rng = np.random.default_rng([seed, which, index])
            yield draw_scene(rng, min_side=min_side, max_side=max_side)

    sets = []
    for which, (name, count) in enumerate((("train", train), ("val", val))):
        shards = -(-count // _RECORDS_PER_SHARD)
        writer = _SetWriter(output, name, label_map, first_id=which * _ID_STRIDE + 1)
        with sharded_writer(output, name, shards, overwrite=overwrite) as write:
            for scene in scenes(which, count):
                write(writer.add(scene))
        sets.append(writer.finish())
    path = write_whole(output / "label_map.pbtxt", label_map.to_text().encode())
    return Scenes(label_map=path, train=sets[0], val=sets[1])


class _SetWriter:
    """Writes the images of one set and collects its annotations."""

    def __init__(self, output: Path, name: str, label_map: LabelMap, *, first_id: int) -> None:
        self._output, self._name, self._label_map = output, name, label_map
        self._first_id = first_id
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._empty = 0

    def add(self, scene: Scene) -> bytes:
        """Writes the image and returns the record."""
        height, width = scene.image.shape[:2]
        number = len(self._images)
        image_id, filename = self._first_id + number, f"{self._name}_{number:05d}.jpg"
        options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
        bgr = cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR)
        encoded = bytes(cv2.imencode(".jpg", bgr, options)[1])
        path = self._output / "images" / self._name / filename
        write_whole(path, encoded, below=self._output)
        image = {"id": image_id, "file_name": filename, "width": width, "height": height}
        self._images.append(image)
        columns = (scene.boxes.tolist(), scene.class_ids.tolist(), scene.areas.tolist())
        for (ymin, xmin, ymax, xmax), class_id, area in zip(*columns, strict=True):
            annotation = {
                "id": len(self._annotations) + 1,
                "image_id": image_id,
                "category_id": class_id,
                "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
                "area": area,
                "iscrowd": 0,
            }
            self._annotations.append(annotation)
        self._empty += len(scene.boxes) == 0
        example = Example(
            image_id=str(image_id),
            encoded=encoded,
            filename=filename,
            height=height,
            width=width,
            boxes=(scene.boxes / [height, width, height, width]).astype(np.float32),
            class_ids=scene.class_ids,
            area=scene.areas,
        )
        return serialize_example(example, self._label_map)

    def finish(self) -> SceneSet:
        """Writes the COCO JSON and returns the content of the set."""
        content = {
            "info": {"description": f"stillbox scenes, {self._name}"},
            "images": self._images,
            "annotations": self._annotations,
            "categories": [{"id": item.id, "name": item.name} for item in self._label_map],
        }
        path = self._output / "annotations" / f"{self._name}.json"
        ids = [annotation["category_id"] for annotation in self._annotations]
        return SceneSet(
            annotations=write_whole(path, json.dumps(content).encode(), below=self._output),
            images=len(self._images),
            empty=self._empty,
            boxes={item.name: ids.count(item.id) for item in self._label_map},
        )
