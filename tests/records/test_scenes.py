import json

import cv2
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records import scenes_shapes
from stillbox.records.label_map import LabelMap
from stillbox.records.scenes import MIN_VISIBLE, draw_scene, write_scenes
from stillbox.records.scenes_shapes import SHAPES, Placement
from stillbox.records.source import ExampleSource
from tests.helpers import digests, refused

GOLDEN_HEIGHT, GOLDEN_WIDTH = (246, 203)
GOLDEN_CLASSES = [4, 1, 2, 6, 5]
GOLDEN_BOXES = [[28, 85, 68, 116], [49, 26, 128, 105], [67, 131, 114, 174], [130, 72, 205, 153],
                [37, 149, 94, 203]]  # fmt: skip
GOLDEN_MEANS = [137.4, 134.5, 129.6]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    return folder, write_scenes(folder, seed=3, train=40, val=15)


def test_the_same_seed_writes_the_same_bytes_and_no_set_twice(written, tmp_path):
    folder, _ = written
    write_scenes(tmp_path, seed=3, train=40, val=15)
    assert digests(tmp_path) == digests(folder)
    with refused("annotations/train.json"):
        write_scenes(folder, train=1, val=1)


@pytest.mark.parametrize(
    "name", ["annotations/train.json", "annotations/val.json", "label_map.pbtxt"]
)
def test_files_of_another_data_set_are_not_replaced(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("item { id: 1 name: 'owl' }")
    with pytest.raises(UserError) as caught:
        write_scenes(tmp_path, train=1, val=1)
    assert caught.value.where == str(path)
    assert path.read_text() == "item { id: 1 name: 'owl' }"
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


def test_another_seed_and_the_other_set_are_other_scenes():
    def draw(*key):
        return draw_scene(np.random.default_rng(key)).image

    assert np.array_equal(draw(3, 0, 0), draw(3, 0, 0))
    for other in ((4, 0, 0), (3, 1, 0), (3, 0, 1)):
        assert not np.array_equal(draw(3, 0, 0), draw(*other))


def test_a_longer_set_begins_with_the_shorter_one(written, tmp_path):
    folder, _ = written
    write_scenes(tmp_path, seed=3, train=5, val=1)
    for name in ("train/train_00004.jpg", "val/val_00000.jpg"):
        same = (tmp_path / "images" / name).read_bytes()
        assert same == (folder / "images" / name).read_bytes()


def test_a_scene_keeps_its_objects_from_release_to_release():
    # Pixels may differ in the last bit between processors, so only their means are held.
    scene = draw_scene(np.random.default_rng([0, 0, 1]))
    assert scene.image.shape == (GOLDEN_HEIGHT, GOLDEN_WIDTH, 3)
    assert scene.class_ids.tolist() == GOLDEN_CLASSES
    np.testing.assert_allclose(scene.boxes, GOLDEN_BOXES, atol=1)
    np.testing.assert_allclose(scene.image.mean(axis=(0, 1)), GOLDEN_MEANS, atol=0.5)


def test_records_coco_json_and_images_agree(written):
    folder, summary = written
    label_map = LabelMap.from_file(summary.label_map)
    assert [item.name for item in label_map.items] == list(SHAPES)
    for written_set, name in ((summary.train, "train"), (summary.val, "val")):
        source = ExampleSource([f"{folder}/{name}.record-*"], label_map, bad_boxes="fail")
        coco = json.loads(written_set.annotations.read_text())
        images = {str(image["id"]): image for image in coco["images"]}
        assert len(source) == len(images) == written_set.images
        assert len(coco["annotations"]) == sum(written_set.boxes.values())
        for index in range(len(source)):
            example = source.example(index)
            image = images.pop(example.image_id)
            assert (example.height, example.width) == (image["height"], image["width"])
            stored = (folder / "images" / name / image["file_name"]).read_bytes()
            assert stored == example.encoded
            rows = [a for a in coco["annotations"] if str(a["image_id"]) == example.image_id]
            assert example.class_ids.tolist() == [row["category_id"] for row in rows]
            assert example.area.tolist() == [row["area"] for row in rows]
            scale = [example.height, example.width] * 2
            pixels = (example.boxes * scale).reshape(-1, 4)
            corners = [[y, x, y + h, x + w] for x, y, w, h in (row["bbox"] for row in rows)]
            np.testing.assert_allclose(pixels, np.reshape(corners, (-1, 4)), atol=1e-3)
        assert not images
        assert not list(source.problems)


def test_the_jpegs_are_the_drawn_scenes(written):
    folder, _ = written
    stored = cv2.imread(str(folder / "images" / "train" / "train_00000.jpg"))[..., ::-1]
    drawn = draw_scene(np.random.default_rng([3, 0, 0])).image
    assert stored.shape == drawn.shape
    # JPEG costs a few of 256 levels, and red and blue must not change places.
    assert np.abs(stored.astype(int) - drawn).mean() < 6


@pytest.fixture(scope="module")
def scenes():
    return [draw_scene(np.random.default_rng([1, 0, index])) for index in range(250)]


def test_scenes_vary_in_number_size_class_and_occlusion(scenes):
    counts = np.array([len(scene.boxes) for scene in scenes])
    assert 0.01 < (counts == 0).mean() < 0.12
    assert counts.max() >= 5
    boxes = np.concatenate([scene.boxes for scene in scenes])
    sides = np.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    assert 0.01 < (sides < 20).mean() < 0.1
    assert ((sides >= 20) & (sides <= 80)).mean() > 0.75
    classes = np.bincount(np.concatenate([s.class_ids for s in scenes]), minlength=7)[1:]
    assert (classes > 60).all()
    assert {scene.image.shape[:2] for scene in scenes} > {scenes[0].image.shape[:2]}
    overlaps = sum(_overlapping(scene.boxes) for scene in scenes)
    assert overlaps > 20


def _overlapping(boxes):
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=2)
    return int((np.triu(shared, 1) > 0).sum())


def test_boxes_lie_inside_the_image_and_around_the_visible_area(scenes):
    for scene in scenes:
        height, width = scene.image.shape[:2]
        assert (scene.boxes[:, :2] >= 0).all()
        assert (scene.boxes[:, 2:] <= [height, width]).all()
        extent = (scene.boxes[:, 2] - scene.boxes[:, 0]) * (scene.boxes[:, 3] - scene.boxes[:, 1])
        assert (scene.areas > 0).all()
        assert (scene.areas <= extent).all()
    assert 0 < MIN_VISIBLE < 1


WHOLE = (slice(0, 64), slice(0, 64))


def whole(name, radius=20.0, **place):
    values = {"y": 32.0, "x": 32.0, "stretch": 1.0, "angle": 0.0} | place
    placement = Placement(radius=radius, **values)
    return scenes_shapes.coverage(SHAPES[name], placement, WHOLE)


@pytest.mark.parametrize(
    ("name", "area"),
    [
        # Exact areas for radius 1: the sum of all coverage must be that times 400.
        ("disc", np.pi),
        ("ring", np.pi * (1.0 - 0.54**2)),
        ("square", 1.6**2),
        ("triangle", 3.0 * np.sqrt(3.0) / 4.0),
        # Ten triangles between a point, an inner corner and the centre.
        ("star", 10.0 * 0.5 * 0.42 * np.sin(np.pi / 5.0)),
        # Two bars of 1.92 by .56 that share their middle.
        ("cross", 2.0 * 1.92 * 0.56 - 0.56**2),
    ],
)
def test_a_shape_covers_its_exact_area(name, area):
    assert whole(name).sum() == pytest.approx(400 * area, rel=0.02)
    turned = whole(name, angle=0.7, stretch=1.2)
    assert turned.sum() == pytest.approx(400 * area, rel=0.03)


def test_the_triangle_points_up_and_the_star_too():
    for name in ("triangle", "star"):
        rows = np.flatnonzero((whole(name) > 0.5).any(axis=1))
        # The top corner lies one radius above the centre at row 32, so it begins at row 12 or 13.
        assert 12 <= rows[0] <= 14
        assert abs(int(np.flatnonzero(whole(name)[rows[0]] > 0.5).mean()) - 32) <= 1


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_window_of_a_placement_contains_the_whole_shape(name):
    placement = Placement(y=30.0, x=33.0, radius=15.0, stretch=1.28, angle=0.5)
    window = scenes_shapes.placement_window(placement, 64, 64)
    everywhere = scenes_shapes.coverage(SHAPES[name], placement, WHOLE)
    inside = scenes_shapes.coverage(SHAPES[name], placement, window)
    np.testing.assert_array_equal(everywhere[window], inside)
    everywhere[window] = 0
    assert not everywhere.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"train": 0}, "a set needs a scene"), ({"min_side": 300}, "no room for objects")],
)
def test_unusable_sizes_are_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        write_scenes(tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["annotations/val.json", "train.record-00000-of-00001"])
def test_a_set_of_somebody_else_is_not_replaced(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"info": {"description": "mine"}}')
    with pytest.raises(UserError) as caught:
        write_scenes(tmp_path, train=1, val=1, overwrite=True)
    assert caught.value.where == str(tmp_path / name)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]
    (tmp_path / name).unlink()
    for overwrite in (False, True):
        write_scenes(tmp_path, train=1, val=1, overwrite=overwrite)
