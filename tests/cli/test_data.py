"""`stillbox data` and its verbs."""

import json

import pytest
from PIL import Image

from stillbox.cli.main import build_parser
from stillbox.errors import UserError
from tests.helpers import digests, refused
from tests.records.builders import CAT_DOG, image_bytes, make_example, write_records
from tests.small import SHARED, needs_shared

pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.fixture
def data_verb(capsys, monkeypatch):
    """Runs a command line and returns its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        args = build_parser().parse_args(["data", *map(str, words)])
        code = args.run(args)
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def voc(tmp_path):
    root = tmp_path / "voc"
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    for stem in ("a", "b"):
        (root / "JPEGImages" / f"{stem}.jpg").write_bytes(image_bytes())
        (root / "Annotations" / f"{stem}.xml").write_text(
            "<annotation><size><width>60</width><height>40</height></size><object>"
            f"<name>{'cat' if stem == 'a' else 'dog'}</name><bndbox><xmin>6</xmin>"
            "<ymin>4</ymin><xmax>36</xmax><ymax>24</ymax></bndbox></object></annotation>"
        )
    (root / "ImageSets" / "Main" / "train.txt").write_text("b\n")
    return root


@pytest.fixture
def coco(tmp_path):
    (tmp_path / "1.jpg").write_bytes(image_bytes())
    content = {
        "images": [{"id": 1, "file_name": "1.jpg", "height": 40, "width": 60}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 18, "bbox": [6, 4, 30, 20]}],
        "categories": [{"id": 18, "name": "dog"}],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    return ["--images", tmp_path, "--annotations", path, "--output", tmp_path / "out"]


def test_convert_coco_then_check_and_count(data_verb, coco, tmp_path):
    code, out = data_verb("convert", "coco", *coco, "--name", "train", "--shards", 3)
    assert code == 0
    records = f"{tmp_path}/out/train.record-?????-of-00001"
    for line in (f"records: {records}", f"label map: {tmp_path}/out/label_map.pbtxt"):
        assert line in out
    label_map = ["--label-map", tmp_path / "out" / "label_map.pbtxt"]
    assert data_verb("check", records, *label_map, "--num-classes", 18)[0] == 0
    code, out = data_verb("check", records, *label_map, "--num-classes", 17, "--json")
    assert code == 1
    assert json.loads(out)["findings"][0]["reason"] == "class id above num_classes"
    code, out = data_verb("stats", records, *label_map)
    assert code == 0
    assert "dog" in out


def test_convert_coco_with_renumbered_ids(data_verb, coco, tmp_path):
    code, out = data_verb("convert", "coco", *coco, "--renumber", "--json")
    assert code == 0
    assert json.loads(out)["files"] == ["instances.record-00000-of-00001"]
    assert "id: 1\n" in (tmp_path / "out" / "label_map.pbtxt").read_text()


def test_convert_voc_by_set_and_whole(data_verb, voc, tmp_path):
    for words, images in ((["--set", "train"], 1), ([], 2)):
        code, out = data_verb("convert", "voc", "--root", voc, "--output", tmp_path / "o", *words,
                             "--json")  # fmt: skip
        assert code == 0
        assert json.loads(out)["images_written"] == images
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == [
        ".stillbox.json",
        "all.record-00000-of-00001",
        "all.report.html",
        "all.report.json",
        "all.report.txt",
        "label_map.pbtxt",
        "train.record-00000-of-00001",
        "train.report.html",
        "train.report.json",
        "train.report.txt",
    ]


def test_convert_voc_of_a_flat_layout_or_without_its_folders(data_verb, voc, tmp_path):
    code, _ = data_verb("convert", "voc", "--annotations", voc / "Annotations",
                       "--images", voc / "JPEGImages", "--output", tmp_path / "o")  # fmt: skip
    assert code == 0
    with refused(None, "VOC"):
        data_verb("convert", "voc", "--output", tmp_path / "o")
    with pytest.raises(UserError, match="--set needs --root"):
        data_verb("convert", "voc", "--images", voc, "--annotations", voc, "--set", "train",
                 "--output", tmp_path / "o")  # fmt: skip


def test_the_report_shows_the_problems(data_verb, voc, tmp_path):
    (voc / "JPEGImages" / "a.jpg").write_bytes(b"no image")
    convert = ["convert", "voc", "--root", voc, "--output", tmp_path / "o"]
    code, out = data_verb(*convert)
    assert code == 0
    for words in ("unreadable image", "image left out", "Annotations/a.xml"):
        assert words in out
    with refused("Annotations/a.xml"):
        data_verb(*convert, "--bad-records", "fail", "--overwrite")


def test_check_without_findings_and_with_a_note(data_verb, tmp_path):
    (tmp_path / "map.pbtxt").write_text(CAT_DOG.to_text())
    path = write_records(tmp_path / "a.record", [make_example()])
    code, out = data_verb("check", path, "--label-map", tmp_path / "map.pbtxt")
    assert code == 0
    assert "class without a box" in out
    assert "The data is sound." in out
    code, out = data_verb("check", path)
    assert (code, "warning" in out) == (0, False)


def test_records_are_checked_and_counted(data_verb, tmp_path):
    (tmp_path / "map.pbtxt").write_text("item { id: 1 name: 'cow' }")
    path = write_records(tmp_path / "a.record", [make_example()])
    code, out = data_verb("check", path, "--label-map", tmp_path / "map.pbtxt")
    assert code == 1
    assert "unknown class" in out
    path = write_records(tmp_path / "a.record", [make_example()])
    code, out = data_verb("stats", path, "--json")
    assert code == 0
    assert json.loads(out)["boxes"] == 1


def test_a_path_that_leads_nowhere_is_a_user_error(data_verb, tmp_path):
    write_records(tmp_path / "train.record", [make_example()])
    with refused("trian.rec*", "train.record"):
        data_verb("check", tmp_path / "trian.rec*")


@needs_shared
def test_the_whole_way_on_real_data(data_verb, tmp_path):
    data, out = SHARED / "data", tmp_path / "out"
    code, text = data_verb("convert", "voc", "--root", data / "bccd", "--set", "val", "--output",
                          out / "bccd")  # fmt: skip
    assert code == 0
    assert "box without area" in text
    assert "BloodImage_00338.xml, box 12" in text
    code, text = data_verb("convert", "coco", "--images", data / "tiny_coco" / "val2017",
                          "--annotations", data / "tiny_coco" / "annotations" /
                          "instances_val2017.json", "--output", out / "coco", "--name", "val",
                          "--shards", 5)  # fmt: skip
    assert code == 0
    assert "What was special or wrong" not in text
    for folder, records, boxes in (("bccd", 87, 1137), ("coco", 50, 382)):
        label_map = ["--label-map", out / folder / "label_map.pbtxt", "--json"]
        code, text = data_verb("check", f"{out}/{folder}/val.record*", *label_map)
        assert code == 0
        assert (json.loads(text)["records"], json.loads(text)["boxes"]) == (records, boxes)
        code, text = data_verb("stats", f"{out}/{folder}/val.record*", *label_map)
        assert json.loads(text)["boxes"] == boxes


def test_a_folder_is_converted_in_one_command_and_exported(data_verb, voc, tmp_path):
    # The options may stand before the folder.
    code, out = data_verb("convert", "--output", tmp_path / "out", voc)
    assert code == 0
    assert out.startswith("format: Pascal VOC XML\n")
    assert f"train: 1 image: {tmp_path}/out/train.record@1\n" in out
    assert "classes: 2: cat, dog\n" in out
    assert (
        "unchanged since the last time"
        in data_verb("convert", voc, "--output", tmp_path / "out")[1]
    )
    code, out = data_verb(
        *("export", "voc", tmp_path / "out/train.record@1", "--output", tmp_path / "back"),
        *("--label-map", tmp_path / "out" / "label_map.pbtxt"),
    )
    assert (code, out) == (0, f"{tmp_path}/back: 1 image and 1 box\n")
    assert list((tmp_path / "back" / "Annotations").glob("*.xml"))


def test_records_with_display_names_are_exported_and_tiled(data_verb, tmp_path):
    path = write_records(tmp_path / "a.record", [make_example()])
    (tmp_path / "map.pbtxt").write_text("item { id: 1 name: '/m/1' display_name: 'cat' }")
    words = ("--label-map", tmp_path / "map.pbtxt", "--use-display-name", "--output")
    _, out = data_verb("export", "coco", path, *words, tmp_path / "coco")
    assert out == f"{tmp_path}/coco: 1 image and 1 box\n"
    _, out = data_verb("tile", path, "--tile", 99, *words, tmp_path / "tiles")
    assert out.startswith("1 image with 1 box\n")


def test_a_folder_as_json(data_verb, voc, tmp_path):
    _, out = data_verb("convert", voc, "--output", tmp_path / "out", "--json")
    stored = json.loads(out)
    assert (stored["format"], stored["boxes"], stored["classes"]) == ("voc", 2, ["cat", "dog"])


def test_the_configs_augmentations_are_shown(stillbox, settings, here):
    out, _ = stillbox(
        "data", "augmentations", "demo_scenes", *settings(), "--images", 2, "--epochs", 3
    ).ended()
    assert out == "picture: augmentations.png\n"
    with Image.open(here / "augmentations.png") as sheet:
        assert sheet.width == 4 * 368 + 8


def test_every_operation_of_autoaugment_on_other_records(stillbox, settings, scenes, here):
    words = [f"{scenes}/val.record*", "--label-map", scenes / "label_map.pbtxt"]
    unnamed = settings("data.train.paths=[]", "data.train.label_map=")
    words += ["--operations", 8, "--images", 1, "--output", "out/sheet.jpg", *unnamed]
    assert (
        stillbox("data", "augmentations", "demo_scenes", *words).out == "picture: out/sheet.jpg\n"
    )
    with Image.open(here / "out/sheet.jpg") as sheet:
        assert sheet.width == 9 * 308 + 8
        usual = sheet.tobytes()
    mean = "train.augmentations=[{kind: autoaugment, policy: v2, contrast: mean}]"
    stillbox("data", "augmentations", "demo_scenes", *words, "--set", mean)
    with Image.open(here / "out/sheet.jpg") as sheet:
        assert sheet.tobytes() != usual


def test_numbers_out_of_range_are_refused(refused, settings, here):
    def saying(*words):
        return refused("data", "augmentations", "demo_scenes", *settings(), *words)

    assert "--images: there is nothing to show" in saying("--images", 0)
    assert "--epochs: there is nothing to show" in saying("--epochs", 0)
    assert "--operations: there is no level 11" in saying("--operations", 11)
    assert "no picture format has the ending '.gif'" in saying("--output", "a.gif")
    assert "no label map" in saying("--set", "data.train.label_map=")


@pytest.mark.parametrize(
    "words",
    [
        ("check", "a.record", "--workers", -1),
        ("check", "a.record", "--num-classes", -1),
        ("tile", "a.record", "--tile", 64, "--output", "t", "--workers", -1),
        ("convert", "a", "--output", "b", "--seed", -1),
        ("scenes", "--output", "s", "--seed", -1),
    ],
)
def test_counts_and_seeds_begin_at_0(refused, words):
    assert "'-1' is no whole number from 0 on" in refused("data", *words)


def test_the_scenes_are_drawn_and_counted(stillbox, here):
    out, _ = stillbox("data", "scenes", "--output", "s", "--train", 3, "--val", 2).ended()
    assert out.startswith("train: 3 scenes, ")
    assert "val: 2 scenes, " in out
    assert "records, images and annotations are in s" in out
    assert stillbox("data", "check", "s/train.record-*", "--label-map", "s/label_map.pbtxt")[0] == 0


def test_the_same_seed_draws_the_same_bytes_and_another_one_others(stillbox, here):
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        stillbox("data", "scenes", "--output", name, "--train", 2, "--val", 1, "--seed", seed)
    assert digests(here / "a") == digests(here / "b")
    record = "train.record-00000-of-00001"
    assert digests(here / "a")[record] != digests(here / "c")[record]


def test_scenes_that_are_there_are_replaced_only_on_demand(stillbox, refused, here):
    words = ["data", "scenes", "--output", "s", "--train", 1, "--val", 1]
    stillbox(*words)
    before = digests(here / "s")
    assert "--overwrite" in refused(*words, "--seed", 9)[-200:]
    assert digests(here / "s") == before
    stillbox(*words, "--seed", 9, "--overwrite").ended()
    assert digests(here / "s") != before


@pytest.mark.parametrize("number", ["-1", "many"])
def test_a_number_of_scenes_is_a_number(refused, here, number):
    assert number in refused("data", "scenes", "--output", "s", "--train", number)
