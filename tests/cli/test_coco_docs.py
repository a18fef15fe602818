"""The commands of docs/coco.md run in order, on zip files of a few images."""

import contextlib
import json
import re
import shlex
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stillbox.cli.main import main
from stillbox.records.label_map import LabelMap
from tests.records.builders import image_bytes, read_records

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coco.md").read_text()
FIRST = 139  # the image that the page predicts on
# Enough for all shards of the page; so many of them have no annotation.
IMAGES = {"train": 260, "val": 40}
BARE = {"train": 4, "val": 2}
# The recipe with one block in each group and one map of default boxes. Values of the page stay.
TINY = (
    "model.resizer={height: 64, width: 64}",
    "model.backbone.depth=10",
    "model.neck={extra_depths: [], extra_strides: []}",
    "model.anchors.maps=[{size: 21, next_size: 45, step: 8, aspect_ratios: [2]}]",
    "train.batch_size=4",
    "train.steps=2",
    "train.checkpoint_every=2",
    "train.freeze=[]",
    "train.precision=float32",
    "train.fine_tune.checkpoint=",
    "evaluation.batch_size=4",
    "data.cache_images=false",
    "data.workers=0",
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
        for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
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
    assert [one["image"] for one in predicted] == ["coco/val2017/000000000139.jpg"]
