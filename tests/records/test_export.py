"""Records written as YOLO, COCO and VOC, and read back."""

import io
import json
import re
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from stillbox.errors import UserError
from stillbox.records.example import Example
from stillbox.records.export import FORMS, export_records
from stillbox.records.folder import convert_folder
from stillbox.records.label_map import LabelMap, LabelMapItem
from stillbox.records.source import ExampleSource
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer
from stillbox.records.tiling import TileOptions, tile_example, tile_records
from stillbox.references import Parameter
from tests.helpers import refused
from tests.records.builders import CAT_DOG, image_bytes, make_example, write_records
from tests.records.test_folder import examples, picture, voc_xml

# VOC's four decimals of 40 x 60 pixels round by less than this.
ROUNDING = 1e-5


def folder_of_two_sets(root):
    for part, names in (("train", "ab"), ("val", "cd")):
        for number, name in enumerate(names):
            picture(root / part / f"{name}.png", ord(name))
            boxes = [("cat", (4, 6, 24, 36)), ("dog", (1, 2, 3 + number, 59))]
            (root / part / f"{name}.xml").write_text(voc_xml(*boxes))
    return root


@pytest.mark.parametrize("form", FORMS)
def test_what_is_exported_reads_back_as_the_same_records(tmp_path, form):
    first = convert_folder(folder_of_two_sets(tmp_path / "photos"), tmp_path / "first")
    label_map = LabelMap.from_file(first.label_map)
    for split, records in (("train", first.train), ("val", first.validation)):
        done = export_records([records], label_map, tmp_path / form, form, split=split)
        assert (done.images, done.boxes, done.problems) == (2, 4, [])
    again = convert_folder(tmp_path / form, tmp_path / "again")
    assert (again.format, again.classes, again.split) == (form, first.classes, first.split)
    for part in ("train", "validation"):
        expected, exported = examples(first, part), examples(again, part)
        assert list(exported) == list(expected)
        for name, example in exported.items():
            assert example.encoded == expected[name].encoded
            np.testing.assert_allclose(example.boxes, expected[name].boxes, atol=ROUNDING, rtol=0)
            np.testing.assert_array_equal(example.class_ids, expected[name].class_ids)


def test_flags_areas_and_ids_survive_where_the_format_has_them(tmp_path):
    flags = {"difficult": np.array([True]), "truncated": np.array([True])}
    crowd = {"is_crowd": np.array([True]), "area": np.array([5], np.float32)}
    path = write_records(tmp_path / "a.record", [make_example(image_id="12", **flags, **crowd)])
    export_records([str(path)], CAT_DOG, tmp_path / "voc", "voc")
    text = (tmp_path / "voc" / "Annotations" / "7.xml").read_text()
    assert "<difficult>1</difficult>" in text
    assert "<truncated>1</truncated>" in text
    export_records([str(path)], CAT_DOG, tmp_path / "coco", "coco", split="val")
    stored = json.loads((tmp_path / "coco/annotations/instances_val.json").read_text())
    assert (stored["images"][0]["id"], stored["images"][0]["file_name"]) == (12, "7.jpg")
    (box,) = stored["annotations"]
    assert (box["iscrowd"], box["area"], box["category_id"]) == (1, 5, 1)


@pytest.mark.parametrize("form", FORMS)
def test_names_in_records_lead_nowhere_else(tmp_path, form):
    names = ["../../up.jpg", "/etc/x.jpg", "a.jpg", "a.jpg", "..", ""]
    records = [make_example(filename=name, image_id=str(n)) for n, name in enumerate(names)]
    (tmp_path / "deep").mkdir()
    path = write_records(tmp_path / "deep" / "a.record", records)
    done = export_records([str(path)], CAT_DOG, tmp_path / "deep" / "out", form)
    assert done.images == 6
    images = [f for f in tmp_path.rglob("*.jpg") if f.is_file()]
    assert len(images) == 6
    assert all(image.is_relative_to(tmp_path / "deep" / "out") for image in images)


@pytest.mark.parametrize(
    ("form", "name"),
    [("yolo", name) for name in ("images", "images/train", "labels", "labels/train")]
    + [("coco", name) for name in ("train", "annotations")]
    + [("voc", name) for name in ("JPEGImages", "Annotations", "ImageSets")],
)
def test_a_link_in_the_output_folder_is_not_followed(tmp_path, form, name):
    path = write_records(tmp_path / "a.record", [make_example(filename="7.jpg")])
    (tmp_path / "home").mkdir()
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "home")
    with pytest.raises(UserError, match="nothing is written there") as caught:
        export_records([str(path)], CAT_DOG, tmp_path / "out", form)
    assert caught.value.where == str(link)
    assert not any((tmp_path / "home").iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_names_become_valid_in_files_and_formats(tmp_path, form):
    names = ["a\n\x1b[2J\u202e.jpg", "CASE.jpg", "case.jpg", "long" * 99 + ".jpg", "-x #%.jpg"]
    label_map = LabelMap.from_names(["cat\x1b\ufffe", "dog"])
    given = [make_example(filename=name, image_id=str(n)) for n, name in enumerate(names)]
    payloads = [serialize_example(example, label_map) for example in given]
    path = write_records(tmp_path / "a.record", payloads)
    export_records([str(path)], label_map, tmp_path / form, form)
    files = [file.name for file in (tmp_path / form).rglob("*.jpg")]
    assert len({name.casefold() for name in files}) == len(names)
    assert {"CASE.jpg", "a__[2J_.jpg", "-x #%.jpg"} <= set(files)
    assert convert_folder(tmp_path / form, tmp_path / "again").boxes == len(names)


def test_the_yaml_of_yolo_has_places_beside_it_and_no_path_of_the_working_folder(tmp_path):
    path = write_records(tmp_path / "a.record", [make_example(filename="7.jpg")])
    for split in ("val", "train"):
        export_records([str(path)], CAT_DOG, tmp_path / "out", "yolo", split=split)
    content = yaml.safe_load((tmp_path / "out" / "data.yaml").read_text())
    names = {0: "cat", 1: "dog"}
    assert content == {"train": "images/train", "val": "images/val", "names": names}


def test_a_second_split_of_voc_leaves_the_annotations_of_the_first(tmp_path):
    for split, name, kind in (("train", "a.jpg", "JPEG"), ("val", "a.png", "PNG")):
        original = make_example(filename=name, encoded=image_bytes(kind=kind))
        path = write_records(tmp_path / "a.record", [original])
        export_records([str(path)], CAT_DOG, tmp_path / "voc", "voc", split=split)
    again = convert_folder(tmp_path / "voc", tmp_path / "again")
    assert (again.train_images, again.validation_images) == (1, 1)
    assert "<filename>a.jpg<" in (tmp_path / "voc/Annotations/a.xml").read_text()


def test_a_second_split_of_yolo_has_the_classes_of_the_first(tmp_path):
    path = str(write_records(tmp_path / "a.record", [make_example()]))
    export_records([path], CAT_DOG, tmp_path / "out", "yolo")
    data = (tmp_path / "out/data.yaml").read_bytes()
    with refused("out/data.yaml"):
        export_records([path], LabelMap.from_names(["cat"]), tmp_path / "out", "yolo", split="val")
    assert (tmp_path / "out/data.yaml").read_bytes() == data
    assert not list((tmp_path / "out").rglob("val*"))


DISPLAYED = LabelMap((LabelMapItem(1, "/m/1", "cat"), LabelMapItem(2, "/m/2", "dog")))


@pytest.mark.parametrize("verb", ["export", "tile"])
def test_texts_may_be_display_names_and_unknown_classes_are_refused(tmp_path, verb):
    paths = [str(write_records(tmp_path / "a.record", [make_example()]))]

    def write(**options):
        if verb == "export":
            return export_records(paths, DISPLAYED, tmp_path / "out", "coco", **options)
        tiles = TileOptions(tile=99)
        return tile_records(paths, tmp_path / "out", "a", tiles, label_map=DISPLAYED, **options)

    with refused("a.record", "cat"):
        write()
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert write(use_display_name=True).boxes == 1


def test_a_split_is_not_written_twice_and_stays_in_the_folder(tmp_path):
    path = str(write_records(tmp_path / "a.record", [make_example()]))
    export_records([path], CAT_DOG, tmp_path / "out", "yolo")
    with pytest.raises(UserError, match="there is such a split"):
        export_records([path], CAT_DOG, tmp_path / "out", "yolo")
    shutil.rmtree(tmp_path / "out" / "labels")
    with refused("out/images/train/7.jpg"):
        export_records([path], CAT_DOG, tmp_path / "out", "yolo")
    with refused(Parameter("split")):
        export_records([path], CAT_DOG, tmp_path / "out", "yolo", split="../../x")
    assert not list(tmp_path.rglob(".*partial*"))


@pytest.mark.parametrize("form", FORMS)
def test_a_split_of_other_images_is_not_replaced(tmp_path, form):
    for name in ("a", "b"):
        write_records(tmp_path / f"{name}.record", [make_example(filename=f"{name}.jpg")])
    export_records([str(tmp_path / "a.record")], CAT_DOG, tmp_path / "out", form)
    files = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*.*") if file.is_file()}
    with pytest.raises(UserError, match="there is such a split"):
        export_records([str(tmp_path / "b.record")], CAT_DOG, tmp_path / "out", form)
    assert {f: f.read_bytes() for f in (tmp_path / "out").rglob("*.*") if f.is_file()} == files


@pytest.mark.parametrize("form", FORMS)
def test_records_without_a_usable_image_are_reported(tmp_path, form):
    path = write_records(tmp_path / "a.record", [make_example(encoded=b"no image")])
    done = export_records([str(path)], CAT_DOG, tmp_path / "out", form)
    assert (done.images, len(done.problems)) == (0, 1)


def test_coordinates_of_voc_have_four_decimals_in_large_images(tmp_path):
    # 9,999 / 8,192 are exact in float32 up to the last of these digits.
    box = np.float32([[0.5, 0.25, 1, 1234.5625 / 2500]])
    wide = make_example(boxes=box, encoded=image_bytes(4, 2500, "PNG"), filename="7.png")
    path = write_records(tmp_path / "a.record", [wide])
    export_records([str(path)], CAT_DOG, tmp_path / "out", "voc")
    text = (tmp_path / "out/Annotations/7.xml").read_text()
    assert re.findall(r"<(?:xmin|xmax|ymin|ymax)>([^<]*)<", text) == ["625", "2", "1234.5625", "4"]


def test_empty_images_stay_background(tmp_path):
    empty = make_example(boxes=[], class_ids=[])
    full = make_example(image_id="8", filename="8.jpg")
    path = write_records(tmp_path / "a.record", [empty, full])
    export_records([str(path)], CAT_DOG, tmp_path / "out", "yolo")
    assert (tmp_path / "out/labels/train/7.txt").read_text() == ""
    assert len(ExampleSource([str(path)])) == 2


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
            for example in examples:
                append(serialize_example(example, label_map))
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
    whole = example(
        [(10, 80, 20, 110), (10, 10, 20, 20)],
        size=(100, 200),
        area=np.float32([150, 80]),
        is_crowd=np.array([True, False]),
    )
    options = TileOptions(tile=100, overlap=0, min_visible=0.3)
    left, right = tile_example(whole, options)
    assert pixel_boxes(left) == [[10, 80, 20, 100], [10, 10, 20, 20]]
    assert left.truncated.tolist() == [True, False]
    assert left.area.tolist() == pytest.approx([100, 80])
    assert left.is_crowd.tolist() == [True, False]
    assert pixel_boxes(right) == [[10, 0, 20, 10]]
    half = TileOptions(tile=100, overlap=0, min_visible=0.5)
    assert [len(tile.boxes) for tile in tile_example(whole, half)] == [2, 0]


def test_an_image_of_one_tile_is_kept_as_it_is():
    whole = example([(1, 1, 9, 9)], size=(80, 100))
    assert list(tile_example(whole, TileOptions(tile=100))) == [whole]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16", "1"])
def test_images_of_every_kind(mode):
    buffer = io.BytesIO()
    image = Image.new("I;16", (150, 40), 0xC800) if mode == "I;16" else Image.new(mode, (150, 40))
    image.save(buffer, "PNG")
    tiles = list(tile_example(example(encoded=buffer.getvalue()), TileOptions(tile=100)))
    assert {Image.open(io.BytesIO(tile.encoded)).mode for tile in tiles} <= {"L", "RGB", "RGBA"}
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
    with refused("train.record"):
        tile_records(paths, tmp_path / "a", "a", TileOptions(min_visible=0.3, **values))
    assert not list((tmp_path / "a").iterdir())
    report = tile_records(paths, tmp_path / "b", "b", TileOptions(min_visible=0.2, **values))
    assert (report.tiles, report.boxes_cut, report.boxes_lost) == (4, 4, 0)
    kept = TileOptions(tile=100, overlap=0, min_visible=0.3)
    assert tile_records(paths, tmp_path / "c", "c", kept).boxes_lost == 1


def test_advice_on_tiles_names_the_flags_of_the_verb(records, tmp_path):
    def refused(paths, message, **options):
        tiles = TileOptions(tile=100, skip_tiles_without_boxes=True)
        with pytest.raises(UserError, match=message):
            tile_records(paths, tmp_path / "tiles", "a", tiles, **options)

    refused(records(example()), r"no tile has a box[\s\S]*leave skip_tiles_without_boxes= out")
    paths = records(example(encoded=b"no image"))
    refused(paths, "or give bad_records=drop to go on without it", bad_records="fail")
    (tmp_path / "train.record").write_bytes(b"no records")
    refused(paths, "or give bad_records=drop to go on without it", bad_records="fail")


@pytest.mark.parametrize(
    "values", [{"tile": 0}, {"overlap": 1.0}, {"min_visible": 0.0}, {"min_visible": 1.1}]
)
def test_impossible_values_are_refused(values):
    with pytest.raises(UserError):
        TileOptions(**{"tile": 100} | values)
