"""Records of tiles: their pixels, their boxes, and what is counted."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from stillbox.errors import UserError
from stillbox.records.example import Example
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer
from stillbox.records.tiling import TileOptions, tile_example, tile_records

LABEL_MAP = LabelMap.from_names(["owl", "hawk"])


def example(boxes=(), size=(200, 300), kind="PNG", **values):
    """Boxes are `[ymin, xmin, ymax, xmax]` in pixels; the pixels hold their own places."""
    height, width = size
    rows, columns = np.mgrid[:height, :width].astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.stack([rows, columns, rows], axis=-1)).save(buffer, kind)
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    count = len(boxes)
    return Example(
        **{
            "image_id": "7",
            "filename": "owls.png",
            "encoded": buffer.getvalue(),
            "height": height,
            "width": width,
            "boxes": boxes / np.float32([height, width, height, width]),
            "class_ids": np.arange(count, dtype=np.int32) % 2 + 1,
        }
        | values
    )


def pixel_boxes(tile):
    return (tile.boxes * np.array([tile.height, tile.width] * 2)).round(3).tolist()


@pytest.fixture
def records(tmp_path):
    """Writes examples and returns the file."""

    def write(*examples, label_map=LABEL_MAP):
        path = tmp_path / "train.record"
        with tfrecord_writer(path) as append:
            for one in examples:
                append(serialize_example(one, label_map))
        if label_map is not None:
            (tmp_path / "label_map.pbtxt").write_text(label_map.to_text())
        return [str(path)]

    return write


def test_pixels_and_boxes_are_those_of_the_image():
    options = TileOptions(tile=100, overlap=0)
    tiles = list(tile_example(example([(110, 210, 130, 240), (10, 20, 30, 50)]), options))
    assert len(tiles) == 6
    first, *between, last = map(pixel_boxes, tiles)
    assert (first, between, last) == ([[10, 20, 30, 50]], [[]] * 4, [[10, 10, 30, 40]])
    last = tiles[-1]
    assert (last.image_id, last.filename) == ("7@200,100", "owls@200,100.png")
    assert last.class_ids.tolist() == [1]
    pixels = np.asarray(Image.open(io.BytesIO(last.encoded)))
    assert pixels.shape == (100, 100, 3)
    assert pixels[0, 0].tolist() == [100, 200, 100]
    assert pixels[-1, 55].tolist() == [199, 255, 199]


def test_boxes_are_clipped_down_to_the_least_visible_share():
    one = example(
        [(10, 80, 20, 110), (10, 10, 20, 20)],
        size=(100, 200),
        area=np.float32([150, 80]),
        is_crowd=np.array([True, False]),
    )
    options = TileOptions(tile=100, overlap=0, min_visible=0.3)
    left, right = tile_example(one, options)
    assert pixel_boxes(left) == [[10, 80, 20, 100], [10, 10, 20, 20]]
    assert left.truncated.tolist() == [True, False]
    assert left.area.tolist() == pytest.approx([100, 80])
    assert left.is_crowd.tolist() == [True, False]
    assert pixel_boxes(right) == [[10, 0, 20, 10]]
    half = TileOptions(tile=100, overlap=0, min_visible=0.5)
    assert [len(tile.boxes) for tile in tile_example(one, half)] == [2, 0]


def test_an_image_of_one_tile_is_kept_as_it_is():
    one = example([(1, 1, 9, 9)], size=(80, 100))
    assert list(tile_example(one, TileOptions(tile=100))) == [one]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16", "1"])
def test_images_of_every_kind(mode):
    buffer = io.BytesIO()
    image = Image.new("I;16", (150, 40), 0xC800) if mode == "I;16" else Image.new(mode, (150, 40))
    image.save(buffer, "PNG")
    tiles = list(tile_example(example(encoded=buffer.getvalue()), TileOptions(tile=100)))
    assert {Image.open(io.BytesIO(tile.encoded)).mode for tile in tiles} <= {"L", "RGB"}
    assert [tile.width for tile in tiles] == [100, 100]
    if mode == "I;16":
        assert np.asarray(Image.open(io.BytesIO(tiles[0].encoded))).max() == 0xC8


def test_a_set_is_written_and_counted(records, tmp_path):
    paths = records(
        example([(10, 80, 20, 110), (50, 98, 60, 198), (5, 5, 9, 9)], size=(100, 200), kind="JPEG"),
        example(size=(50, 60)),
        example(encoded=b"no image"),
    )
    options = TileOptions(tile=100, overlap=0, min_visible=0.4)
    report = tile_records(paths, tmp_path / "tiles", "train", options)
    assert (report.images, report.boxes, report.tiles, report.tiles_without_boxes) == (2, 3, 3, 1)
    assert (report.boxes_written, report.boxes_cut, report.boxes_lost) == (3, 2, 0)
    assert "1" in str(report.problems[0]) and "unreadable image" in str(report.problems[0])
    written = ExampleSource([str(tmp_path / "tiles/train.record-*")], LABEL_MAP)
    tiles = [written.example(index) for index in range(len(written))]
    assert [tile.image_id for tile in tiles] == ["7@0,0", "7@100,0", "7"]
    assert tiles[0].encoded.startswith(b"\xff\xd8")
    assert tiles[1].truncated.tolist() == [True]
    assert LabelMap.from_file(tmp_path / "tiles/label_map.pbtxt") == LABEL_MAP
    stored = json.loads((tmp_path / "tiles/train.report.json").read_text())
    assert stored["settings"]["min_visible"] == 0.4
    assert stored["boxes_cut"] == 2
    with pytest.raises(UserError, match="there is a set of this name already"):
        tile_records(paths, tmp_path / "tiles", "train", options)


def test_lost_boxes_and_background_tiles(records, tmp_path):
    # In four tiles a quarter each.
    paths = records(example([(90, 90, 110, 110)], size=(200, 200)), label_map=None)
    values = {"tile": 100, "overlap": 0, "skip_tiles_without_boxes": True}
    with pytest.raises(UserError, match="no tile was written"):
        tile_records(paths, tmp_path / "a", "a", TileOptions(min_visible=0.3, **values))
    assert not list((tmp_path / "a").iterdir())
    report = tile_records(paths, tmp_path / "b", "b", TileOptions(min_visible=0.2, **values))
    assert (report.tiles, report.boxes_cut, report.boxes_lost) == (4, 4, 0)
    kept = TileOptions(tile=100, overlap=0, min_visible=0.3)
    assert tile_records(paths, tmp_path / "c", "c", kept).boxes_lost == 1


@pytest.mark.parametrize(
    "values", [{"tile": 0}, {"overlap": 1.0}, {"min_visible": 0.0}, {"min_visible": 1.1}]
)
def test_impossible_values_are_refused(values):
    with pytest.raises(UserError):
        TileOptions(**{"tile": 100} | values)
