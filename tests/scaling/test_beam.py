"""Beam writes what the threads write: records, shards and report, byte for byte."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox.records.conversion import ConversionOptions, convert
from stillbox.records.formats.coco import read_coco
from stillbox.records.problems import ConversionLog
from stillbox.scaling import beam as under_test
from stillbox.scaling.beam import convert_with_beam
from tests.records.builders import image_bytes

needs_beam = pytest.mark.skipif(find_spec("apache_beam") is None, reason="Beam is not installed")

IMAGES = 23
MISSING, BROKEN, NO_BOX = 3, (4, 17), 9


@pytest.fixture
def folder(tmp_path):
    """Images of a COCO file, of which one is missing, two are broken and one is background."""
    content = {"images": [], "annotations": [], "categories": [{"id": 18, "name": "dog"}]}
    for number in range(IMAGES):
        file = tmp_path / f"{number}.jpg"
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
    (tmp_path / "instances.json").write_text(json.dumps(content))
    return tmp_path


@pytest.fixture
def run(folder):
    """Converts into a folder and returns its files."""

    def run(output, policy="drop", more=None, **options):
        log = ConversionLog(policy)
        items, label_map = read_coco(folder / "instances.json", folder, log)
        convert(
            items,
            label_map,
            folder / output,
            "train",
            options=ConversionOptions(**options),
            log=log,
            **(more or {}),
        )
        return contents(folder / output)

    return run


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@needs_beam
@pytest.mark.parametrize(
    "options",
    [
        {"shards": 4},
        {"shards": 40, "shard_names": "tfrecord", "skip_images_without_boxes": True},
    ],
)
def test_the_same_bytes_and_shards(run, monkeypatch, options):
    monkeypatch.setattr(under_test, "_CHUNK", 5)
    expected = run("threads", **options)
    records = 20 if "shard_names" not in options else 19
    # Three files for the label map and the report; a shard that would be empty is not written.
    assert len(expected) == min(options["shards"], records) + 3
    assert run("beam", **options, more={"engine": convert_with_beam}) == expected


@needs_beam
def test_an_older_set_is_replaced_only_when_asked(run, folder):
    beam = {"engine": convert_with_beam}
    expected = run("threads", shards=2)
    run("beam", shards=3, more=beam)
    with pytest.raises(UserError, match=r"a set of this name already: train\.record-00000-of-0000"):
        run("beam", shards=2, more=beam)
    assert run("beam", shards=2, overwrite=True, more=beam) == expected


@needs_beam
def test_the_fail_policy_gives_the_same_error_and_leaves_no_files(run, folder, monkeypatch):
    monkeypatch.setattr(under_test, "_CHUNK", 5)
    said = []
    for output, more in (("threads", {}), ("beam", {"engine": convert_with_beam})):
        with pytest.raises(UserError, match=r"image 3 \(3\.jpg\): image file is missing") as caught:
            run(output, policy="fail", more=more)
        said.append(str(caught.value))
        assert contents(folder / output) == {}
    assert said[0] == said[1]


@needs_beam
def test_two_processes(run, monkeypatch):
    monkeypatch.setattr(under_test, "_CHUNK", 5)
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    beam = partial(convert_with_beam, options=options)
    assert run("beam", shards=4, more={"engine": beam}) == run("threads", shards=4)


def test_two_conversions_of_one_name_share_no_folder(run, folder, monkeypatch):
    scratches, beam = [], {"engine": convert_with_beam}

    def convert_again(job, chunks, options, scratch):
        with pytest.raises(UserError, match=r"train\.beam: another process is writing it"):
            run("beam", more=beam)
        scratches.append(Path(scratch))
        raise InterruptedError

    monkeypatch.setattr(under_test, "import_extra", lambda *names: None)
    monkeypatch.setattr(under_test, "_run", convert_again)
    for _ in range(2):
        with pytest.raises(InterruptedError):
            run("beam", more=beam)
    assert len(set(scratches)) == 2
    assert contents(folder / "beam") == {}
