"""The commands of docs/coco.md and docs/data.md run in order, in folders laid out as described."""

import contextlib
import json
import re
import shlex
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stillbox.cli.main import build_parser, main
from stillbox.records.label_map import LabelMap
from tests.documented_folder import SSD_RESNET34_TINY
from tests.helpers import draw_nothing
from tests.records.builders import image_bytes, read_records
from tests.records.test_folder import picture

COCO_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coco.md").read_text()
FIRST = 139  # the image that the page predicts on
# Enough for all shards of the page; so many of them have no annotation.
IMAGES = {"train": 260, "val": 40}
BARE = {"train": 4, "val": 2}
TINY = (
    *SSD_RESNET34_TINY,
    "train.steps=2",
    "train.checkpoint_every=2",
    "evaluation.batch_size=4",
    "data.cache_images=false",
    # 80 classes take long without a compiler that takes pains.
    "model.postprocessing.nms={max_per_class: 2, max_total: 4}",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """COCO's three zip files."""
    folder = tmp_path_factory.mktemp("coco")
    categories = [{"id": item.id, "name": item.name} for item in LabelMap.from_file("coco")]
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(folder / "annotations_trainval2017.zip", "w") as annotations:
        for part, count in IMAGES.items():
            content = {"images": [], "annotations": [], "categories": categories}
            with zipfile.ZipFile(folder / f"{part}2017.zip", "w") as images:
                for number in range(FIRST, FIRST + count):
                    name = f"{number:012d}.jpg"
                    images.writestr(f"{part}2017/{name}", image_bytes(40, 60))
                    entry = {"id": number, "file_name": name, "height": 40, "width": 60}
                    content["images"].append(entry)
                    if number < FIRST + count - BARE[part]:
                        content["annotations"].append(
                            {
                                "id": number,
                                "image_id": number,
                                "category_id": categories[int(rng.integers(80))]["id"],
                                "bbox": [6, 4, 30, 20],
                                "area": 600,
                                "iscrowd": 0,
                            }
                        )
            annotations.writestr(f"annotations/instances_{part}2017.json", json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def after(folder):
    """The folder after all commands of the page."""
    (folder / "cache").mkdir()
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        draw_nothing(patch)
        for block in re.findall(r"^```sh\n(.*?)^```$", COCO_PAGE, re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                run(shlex.split(line))
    return folder


def run(words):
    if words[0] == "unzip":
        _, quiet, archive, into, target = words
        assert (quiet, into) == ("-q", "-d")
        zipfile.ZipFile(archive).extractall(target)
        return
    assert words[0] == "stillbox"
    small = TINY if words[1] == "train" else ()
    overrides = [word for override in small for word in ("--set", override)]
    assert main([*words[1:], *overrides]) == 0, words


def test_the_files_have_the_names_and_numbers_of_the_page(after):
    files = sorted(path.name for path in (after / "coco" / "records").glob("*.tfrecord"))
    train = [f"train-{shard:05d}-of-00256.tfrecord" for shard in range(256)]
    assert files == [*train, *(f"val-{shard:05d}-of-00032.tfrecord" for shard in range(32))]
    counts = {"train": 0, "val": 0}
    for path in (after / "coco" / "records").glob("*.tfrecord"):
        counts[path.name.partition("-")[0]] += len(read_records(path))
    assert counts == {"train": 256, "val": 40}
    assert LabelMap.from_file(after / "coco/records/label_map.pbtxt") == LabelMap.from_file("coco")


def test_the_run_has_80_classes_and_publishes_coco_s_ids(after):
    stored = LabelMap.from_file(after / "runs/coco/label_map.pbtxt")
    metrics = json.loads((after / "runs/coco/evaluation/metrics.json").read_text())
    assert metrics["images"] == 40
    assert set(metrics["per_class"]) == set(stored.names.values())
    assert len(stored) == 80
    predicted = json.loads((after / "predictions/predictions.json").read_text())
    assert [entry["image"] for entry in predicted] == ["coco/val2017/000000000139.jpg"]


DATA_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()


@pytest.fixture
def described(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for part in ("train", "val"):
        images = tmp_path / "coco" / f"{part}2017"
        images.mkdir(parents=True)
        content = {"images": [], "annotations": [], "categories": [{"id": 18, "name": "dog"}]}
        for number in range(10):
            (images / f"{number}.jpg").write_bytes(image_bytes())
            entry = {"id": number, "file_name": f"{number}.jpg", "height": 40, "width": 60}
            content["images"].append(entry)
            box = {"id": number, "image_id": number, "category_id": 18, "bbox": [6, 4, 30, 20]}
            content["annotations"].append(box)
        (tmp_path / "coco" / f"instances_{part}2017.json").write_text(json.dumps(content))
    for images, annotations in (
        ("VOC2007/JPEGImages", "VOC2007/Annotations"),
        ("flat/images", "flat/annotations"),
    ):
        (tmp_path / images).mkdir(parents=True)
        (tmp_path / annotations).mkdir(parents=True)
        (tmp_path / images / "a.jpg").write_bytes(image_bytes())
        (tmp_path / annotations / "a.xml").write_text(
            "<annotation><object><name>dog</name><bndbox><xmin>6</xmin><ymin>4</ymin>"
            "<xmax>36</xmax><ymax>24</ymax></bndbox></object></annotation>"
        )
    (tmp_path / "photos" / "labels").mkdir(parents=True)
    for number, name in enumerate("abcd"):
        picture(tmp_path / "photos" / "images" / f"{name}.png", number)
        (tmp_path / "photos" / "labels" / f"{name}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "photos" / "data.yaml").write_text("names: [dog]\nnc: 1\n")
    sets = tmp_path / "VOC2007" / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    for part in ("train", "val"):
        (sets / f"{part}.txt").write_text("a\n")
    return tmp_path


def blocks(language):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", DATA_PAGE, re.DOTALL | re.MULTILINE)
    return [block for name, block in fenced if name == language]


def test_commands_and_program_run(described, capsys):
    commands = [line for block in blocks("") for line in block.splitlines()]
    assert len(commands) == 12
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "stillbox"
        args = build_parser().parse_args(words)
        assert args.run(args) == 0, command
    capsys.readouterr()
    (program,) = blocks("python")
    names = {}
    exec(program, names)
    assert "10 records/train.record-00003-of-00010: record 0" in capsys.readouterr().out
    np.testing.assert_allclose(names["example"].boxes, [[0.1, 0.1, 0.6, 0.6]])
