"""Conversion on a local Ray of two workers: the same bytes as in one process."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from stillbox.cli.main import main
from stillbox.errors import UserError
from stillbox.records.conversion import ConversionOptions, convert
from stillbox.records.folder import convert_folder
from stillbox.records.formats.coco import read_coco
from stillbox.records.problems import ConversionLog
from stillbox.scaling.ray_map import ray_map
from tests.records.builders import image_bytes

pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    # Ray Data 2.60 sets options of its own that it has deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]

IMAGES = 40
MISSING, BROKEN, NO_BOX = 3, (4, 17), 9


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """COCO images, of which one is missing, two are broken and one is background."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    content = {"images": [], "annotations": [], "categories": [{"id": 18, "name": "dog"}]}
    for number in range(IMAGES):
        file = data / f"{number}.png"
        if number != MISSING:
            # Different heights, so that two images in each other's place would be seen.
            file.write_bytes(
                b"no image" if number in BROKEN else image_bytes(height=40 + number, width=60)
            )
        size = {"height": 40 + number, "width": 60}
        content["images"].append({"id": number, "file_name": file.name, **size})
        # Every fifth box reaches outside its image.
        width = 90 if number % 5 == 0 else 30
        box = {"id": number, "image_id": number, "category_id": 18, "bbox": [6, 4, width, 20]}
        if number != NO_BOX:
            content["annotations"].append(box)
    (data / "instances.json").write_text(json.dumps(content))
    return tmp_path


VOC = """<annotation><filename>{0}.png</filename><size><width>60</width><height>{1}</height></size>
<object><name>dog</name><bndbox><xmin>6</xmin><ymin>4</ymin><xmax>36</xmax><ymax>24</ymax></bndbox>
</object></annotation>"""


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def both(*words):
    """Runs a conversion with both engines and returns the files of each."""
    files = []
    for engine in ("local", "ray"):
        # The report of a folder has its path.
        shutil.rmtree("out", ignore_errors=True)
        assert main(["data", "convert", *words, "--output", "out", "--engine", engine]) == 0
        files.append(contents(Path("out")))
    return files


COCO = ("coco", "--images", "data", "--annotations", "data/instances.json", "--shards", "3")


def test_coco_with_relative_paths(ray_cluster, folder):
    local, ray = both(*COCO, "--name", "train", "--shard-names", "tfrecord")
    assert len(local) == 7
    assert ray == local


def test_voc(ray_cluster, folder):
    annotations = folder / "xml"
    annotations.mkdir()
    for number in range(IMAGES):
        (annotations / f"{number}.xml").write_text(VOC.format(number, 40 + number))
    local, ray = both("voc", "--images", "data", "--annotations", "xml")
    assert "all.record-00000-of-00001" in local
    assert ray == local


def test_a_folder(ray_cluster, folder):
    local, ray = both("data", "--shards", "2")
    assert "val.record-00001-of-00002" in local
    assert ray == local
    # Engine and workers are no part of what is converted.
    with ray_map(workers=1) as engine:
        again = convert_folder("data", "out", options=ConversionOptions(shards=2), engine=engine)
    assert again.reused


def test_the_fail_policy_gives_the_same_error_and_leaves_no_files(ray_cluster, folder, capsys):
    said = []
    for engine in ("local", "ray"):
        words = ["data", "convert", *COCO, "--output", "out", "--bad-records", "fail"]
        assert main([*words, "--engine", engine]) == 2
        said.append(capsys.readouterr().err)
        assert not list(Path("out").glob("*"))
    assert "image 3 (3.png): image file is missing" in said[0]
    assert said[0] == said[1]


def killed_once(flag, item):
    """Ends its own process at the twentieth item, but for the second time."""
    if item == 20 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item, os.getpid()


def test_the_part_of_a_killed_worker_is_done_again(ray_cluster, tmp_path):
    flag = tmp_path / "killed"
    with ray_map(workers=1) as engine:
        results = list(engine(partial(killed_once, flag), range(100)))
    assert flag.exists()
    assert [item for item, _ in results] == list(range(100))
    assert os.getpid() not in {process for _, process in results}


def test_errors_of_the_system_keep_their_kind(ray_cluster, tmp_path):
    with (
        ray_map() as engine,
        pytest.raises(FileNotFoundError, match=r"absent"),
    ):
        list(engine(Path.read_bytes, [tmp_path / "absent"]))


def test_nothing_is_started_for_no_items(ray_cluster, monkeypatch):
    with ray_map() as engine:
        monkeypatch.setattr("ray.data.from_items", None)
        assert list(engine(str, [])) == []


def test_a_cluster_without_room(ray_cluster):
    needed = r"room for 1 of 2 workers with CPU=2 each"
    with pytest.raises(UserError, match=needed), ray_map(workers=2, resources={"CPU": 2}):
        pass


def test_a_set_by_the_function(ray_cluster, folder):
    log = ConversionLog()
    items, label_map = read_coco(folder / "data" / "instances.json", folder / "data", log)
    with ray_map(workers=2, resources={"CPU": 0.5, "memory": 2**20}) as engine:
        report = convert(
            items, label_map, "out", "train", options=ConversionOptions(), log=log, engine=engine
        )
    assert (report.images_found, report.images_written) == (IMAGES - 1, IMAGES - 3)
