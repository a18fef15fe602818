"""The demo data set: drawn scenes, written as TFRecord shards, label map, COCO JSON and images.

A scene has a textured background, distractors and objects, some of them occluded. Nothing is
downloaded. Scene n of a set is a function of (seed, set, n): a longer set begins with the shorter
one, and two runs write the same bytes.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.records import scenes_shapes
from stillbox.records.conversion import check_label_map, keep_label_map
from stillbox.records.example import Example
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.files import write_whole
from stillbox.records.label_map import LabelMap
from stillbox.records.scenes_shapes import SHAPES, Floats, PixelWindow, Placement
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import shard_files, sharded_writer
from stillbox.references import Parameter

SIDES = (160, 256)
"""Least and greatest height and width of a scene, in pixels."""
EMPTY_SHARE = 0.05
"""Share of scenes without any object."""
MIN_VISIBLE = 0.4
"""Least visible share of an object that has a box."""

_COUNTS = (1, 2, 3, 4, 5, 6)
_COUNT_SHARES = (0.16, 0.24, 0.24, 0.18, 0.11, 0.07)
_SMALL_SHARE = 0.1
_NOTHING = -1


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A drawn image and its N visible objects."""

    image: NDArray[np.uint8]
    """`[H, W, 3]`, RGB."""
    boxes: NDArray[np.float32]
    """`[N, 4]`, ymin, xmin, ymax, xmax in pixels around the *visible* part of the object."""
    class_ids: NDArray[np.int32]
    """`[N]`, label map ids: 1 for the first of `SHAPES`."""
    areas: NDArray[np.float32]
    """`[N]`, visible area in square pixels."""


class _Canvas:
    """The image while it is painted, and the number of the object that each pixel shows."""

    def __init__(self, image: Floats) -> None:
        self.image = image
        self.height, self.width = image.shape[:2]
        self.owner = np.full(image.shape[:2], _NOTHING, np.int32)

    def paint(self, window: PixelWindow, cover: Floats, paint: Floats, owner: int) -> None:
        """Blends `paint` over the window; pixels more than half covered get a new owner."""
        part = self.image[window]
        part += cover[..., None] * (paint - part)
        self.owner[window][cover > 0.5] = owner


def draw_scene(rng: Generator, *, min_side: int = SIDES[0], max_side: int = SIDES[1]) -> Scene:
    """Draws a scene of `min_side` to `max_side` pixels; `rng` determines everything about it."""
    height, width = (int(side) for side in rng.integers(min_side, max_side + 1, 2))
    canvas = _Canvas(scenes_shapes.background(rng, height, width))
    _draw_distractors(rng, canvas, int(rng.integers(0, 5)))
    empty = rng.uniform() < EMPTY_SHARE
    count = 0 if empty else int(rng.choice(_COUNTS, p=_COUNT_SHARES))
    objects = _draw_objects(rng, canvas, count)
    if rng.uniform() < 0.25:
        _draw_line(rng, canvas)
    grain = rng.normal(0.0, rng.uniform(0.004, 0.025), (height, width, 1)).astype(np.float32)
    image = np.clip(canvas.image + grain, 0.0, 1.0)
    return _with_truth(np.rint(image * 255.0).astype(np.uint8), canvas.owner, objects)


def draw_images(count: int) -> list[NDArray[np.uint8]]:
    """Returns the images of some scenes, `[h, w, 3]` each, where there are no photographs."""
    return [draw_scene(np.random.default_rng(seed)).image for seed in range(count)]


def _draw_distractors(rng: Generator, canvas: _Canvas, count: int) -> None:
    """Paints thin lines and soft spots behind the objects."""
    side = min(canvas.height, canvas.width)
    for _ in range(count):
        if rng.uniform() < 0.5:
            _draw_line(rng, canvas)
            continue
        spot = Placement(
            y=rng.uniform(0, canvas.height),
            x=rng.uniform(0, canvas.width),
            radius=rng.uniform(0.05, 0.2) * side,
            stretch=rng.uniform(1.0, 4.0),
            angle=rng.uniform(0.0, np.pi),
        )
        window = scenes_shapes.placement_window(spot, canvas.height, canvas.width)
        cover = scenes_shapes.coverage(_soft_spot, spot, window)
        color = scenes_shapes.random_color(rng, saturation=(0.0, 0.6))
        canvas.paint(window, cover * np.float32(0.5), color, _NOTHING)


def _soft_spot(x: Floats, y: Floats) -> Floats:
    # Not a distance: fades over the whole radius instead of one pixel.
    return (np.hypot(x, y) - np.float32(0.5)) * np.float32(0.03)


def _draw_line(rng: Generator, canvas: _Canvas) -> None:
    height, width = canvas.height, canvas.width
    start = (rng.uniform(0, height), rng.uniform(0, width))
    length, angle = rng.uniform(0.15, 0.6) * min(height, width), rng.uniform(0.0, 2.0 * np.pi)
    end = (start[0] + length * np.sin(angle), start[1] + length * np.cos(angle))
    thickness = rng.uniform(1.5, 4.0)
    window = scenes_shapes.window_around(
        (min(start[0], end[0]) - thickness, min(start[1], end[1]) - thickness),
        (max(start[0], end[0]) + thickness, max(start[1], end[1]) + thickness),
        height,
        width,
    )
    cover = scenes_shapes.segment_coverage(start, end, thickness, window)
    color = scenes_shapes.random_color(rng, saturation=(0.0, 0.9))
    canvas.paint(window, cover, color, _NOTHING)


def _draw_objects(rng: Generator, canvas: _Canvas, count: int) -> list[tuple[int, int]]:
    """Paints objects one over the other; returns class id and number of pixels before occlusion."""
    objects: list[tuple[int, int]] = []
    taken: list[Placement] = []
    for _ in range(count):
        placement = _find_place(rng, taken, canvas.height, canvas.width)
        if placement is None:
            continue
        taken.append(placement)
        shape = int(rng.integers(len(SHAPES)))
        window = scenes_shapes.placement_window(placement, canvas.height, canvas.width)
        cover = scenes_shapes.coverage(list(SHAPES.values())[shape], placement, window)
        behind = canvas.image[window][cover > 0].mean(axis=0)
        color = scenes_shapes.contrasting_color(rng, behind)
        height, width = cover.shape
        paint = scenes_shapes.filling(rng, height, width, color, 2.0 * placement.radius)
        canvas.paint(window, cover, paint, owner=len(objects))
        objects.append((shape + 1, int((cover > 0.5).sum())))
    return objects


def _find_place(
    rng: Generator, taken: list[Placement], height: int, width: int
) -> Placement | None:
    """Returns a place with little occlusion, or None if ten attempts found none.

    One in five objects may lie on top of others; the edge of the image may cut off a quarter.
    """
    side = min(height, width)
    small = rng.uniform() < _SMALL_SHARE
    share = rng.uniform(0.05, 0.08) if small else np.exp(rng.uniform(*np.log((0.09, 0.24))))
    radius = side * share
    nearness = 0.4 if rng.uniform() < 0.2 else 1.1
    inset = radius * 0.6
    for _ in range(10):
        y, x = rng.uniform(inset, height - inset), rng.uniform(inset, width - inset)
        if all(np.hypot(y - o.y, x - o.x) > nearness * (radius + o.radius) for o in taken):
            stretch, angle = float(np.exp(rng.uniform(-0.15, 0.15))), rng.uniform(-0.4, 0.4)
            return Placement(y=y, x=x, radius=float(radius), stretch=stretch, angle=angle)
    return None


def _with_truth(
    image: NDArray[np.uint8], owner: NDArray[np.int32], objects: list[tuple[int, int]]
) -> Scene:
    boxes, class_ids, areas = [], [], []
    for number, (class_id, pixels) in enumerate(objects):
        seen = owner == number
        area = int(seen.sum())
        if area < MIN_VISIBLE * pixels or area == 0:
            continue
        rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
        boxes.append([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1])
        class_ids.append(class_id)
        areas.append(area)
    return Scene(
        image=image,
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        class_ids=np.array(class_ids, np.int32),
        areas=np.array(areas, np.float32),
    )


_JPEG_QUALITY = 90
_RECORDS_PER_SHARD = 200
# The description of a set, at the head of its annotations.
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
    numbers of scenes. Height and width of a scene are `min_side` to `max_side` pixels.

    Raises:
        UserError: a set would be empty, the sides are unusable, or a set or another label map
            exists already, or a file of somebody else would be replaced.
    """
    if train < 1 or val < 1:
        problem = f"a set needs a scene: {train} for training, {val} for evaluation"
        raise UserError(
            problem, fix=f"give both {Parameter('train')} and {Parameter('val')} at least 1"
        )
    if not 32 <= min_side <= max_side:
        problem = f"sides from {min_side} to {max_side} pixels leave no room for objects"
        fix = "use at least 32 pixels, and a greatest side that is no smaller than the least"
        raise UserError(problem, fix=fix)
    output = Path(output)
    names = ("train", "val")
    written = [path for name in names for path in (f"images/{name}", f"annotations/{name}.json")]
    records = [path.name for name in names for path in shard_files(output, name)]
    refuse_others(output, [*written, *records])
    label_map = LabelMap.from_names(SHAPES)
    check_label_map(output, label_map)
    for name in names:
        if not overwrite and (path := _annotations(output, name)).exists():
            fix = (
                f"choose another {Parameter('output')}, or replace the set with "
                f"{Parameter('overwrite')}"
            )
            raise UserError("there is a set of this name already", where=str(path), fix=fix)
    claim_files(output, written)
    sets = []
    for which, (name, count) in enumerate(zip(names, (train, val), strict=True)):
        shards = -(-count // _RECORDS_PER_SHARD)
        writer = _SetWriter(output, name, label_map, first_id=which * _ID_STRIDE + 1)
        with sharded_writer(output, name, shards, overwrite=overwrite) as write:
            for index in range(count):
                rng = np.random.default_rng([seed, which, index])
                write(writer.add(draw_scene(rng, min_side=min_side, max_side=max_side)))
        sets.append(writer.finish())
    path = keep_label_map(output, label_map)
    return Scenes(label_map=path, train=sets[0], val=sets[1])


def _annotations(output: Path, name: str) -> Path:
    return output / "annotations" / f"{name}.json"


class _SetWriter:
    """Writes the images of one set and collects its annotations."""

    def __init__(self, output: Path, name: str, label_map: LabelMap, *, first_id: int) -> None:
        self._output, self._name, self._label_map = output, name, label_map
        self._first_id = first_id
        self._images: list[dict[str, object]] = []
        self._annotations: list[dict[str, object]] = []
        self._empty = 0

    def add(self, scene: Scene) -> bytes:
        """Writes the image and returns the record."""
        height, width = scene.image.shape[:2]
        number = len(self._images)
        image_id, filename = self._first_id + number, f"{self._name}_{number:05d}.jpg"
        bgr = cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR)
        encoded = bytes(cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])[1])
        path = self._output / "images" / self._name / filename
        write_whole(path, encoded, below=self._output)
        self._images.append(
            {"id": image_id, "file_name": filename, "width": width, "height": height}
        )
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
        path = _annotations(self._output, self._name)
        ids = [annotation["category_id"] for annotation in self._annotations]
        return SceneSet(
            annotations=write_whole(path, json.dumps(content).encode(), below=self._output),
            images=len(self._images),
            empty=self._empty,
            boxes={item.name: ids.count(item.id) for item in self._label_map},
        )
