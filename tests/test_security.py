"""docs/security.md: what an untrusted file cannot do, where no other test shows it."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stillbox.checkpoints.checkpoint import Checkpoint
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.records.coco import read_coco
from stillbox.records.data_folder import DataFolder
from stillbox.records.formats.build import labelled
from stillbox.records.formats.registry import recognise
from stillbox.records.guarded import read_xml
from stillbox.records.problems import ConversionLog
from stillbox.records.tfrecord import sharded_writer
from stillbox.records.voc import read_voc

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.fixture
def photos(tmp_path):
    """A folder of images beside a secret, and a link in it that leads there."""
    Image.fromarray(np.zeros((8, 6, 3), np.uint8)).save(tmp_path / "secret.jpg")
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes((tmp_path / "secret.jpg").read_bytes())
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    return folder


OUTSIDE = ["../secret.jpg", "x/../../secret.jpg", "..\\secret.jpg", "{root}/secret.jpg", "link.jpg"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_annotation_names_no_image_outside_of_its_folder(photos, name):
    name = name.format(root=photos.parent)
    coco = {
        "images": [{"id": 1, "file_name": name, "height": 8, "width": 6}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2]}],
        "categories": [{"id": 1, "name": "dog"}],
    }
    (photos / "x.json").write_text(json.dumps(coco))
    with pytest.raises(UserError, match="leads out of the folder"):
        read_coco(photos / "x.json", photos, ConversionLog())
    box = "<xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax>"
    files = {
        "x.json": json.dumps(coco),
        "x.xml": f"<annotation><filename>{name}</filename><object><name>dog</name><bndbox>{box}"
        "</bndbox></object></annotation>",
        "c.xml": f"<annotations><image name='{name}'><box label='dog' xtl='1' ytl='1' xbr='3' "
        "ybr='3'/></image></annotations>",
    }
    for file, content in files.items():
        (photos / "x.json").unlink(missing_ok=True)
        (photos / file).write_text(content)
        found = DataFolder(photos)
        recognised = recognise(found)
        with pytest.raises(UserError, match="leads out of the folder"):
            recognised.format.read(found, recognised.files, ConversionLog())
        (photos / file).unlink()


@pytest.mark.timeout(20)
def test_pipes_among_the_files_are_not_opened(photos):
    os.mkfifo(photos / "pipe.jpg")
    os.mkfifo(photos / "x.json")
    os.mkfifo(photos / "x.xml")
    with pytest.raises(UserError, match=r"x\.json: it is a pipe"):
        read_coco(photos / "x.json", photos, ConversionLog())
    with pytest.raises(UserError, match="no XML file names an object"):
        read_voc(photos, photos, ConversionLog())
    item = labelled(photos / "pipe.jpg", "", [], []).image
    with pytest.raises(OSError, match="is a pipe"):
        item.content()


ENTITIES = {
    "external": '<!ENTITY x SYSTEM "file://{secret}">',
    "multiplied": '<!ENTITY a "{ten}">' + "".join(
        f'<!ENTITY {name} "{10 * f"&{former};"}">'
        for former, name in zip("abcdefghi", "bcdefghij", strict=True)
    ) + '<!ENTITY x "&j;">',
}  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("kind", ENTITIES)
def test_entities_of_xml_are_not_followed(tmp_path, kind, encoding):
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    entities = ENTITIES[kind].format(secret=secret, ten="lollollol!")
    text = f"<!DOCTYPE annotation [{entities}]><annotation><filename>&x;</filename></annotation>"
    (tmp_path / "a.xml").write_bytes(text.encode(encoding))
    with pytest.raises(UserError) as caught:
        read_xml(tmp_path / "a.xml")
    assert "secret" not in caught.value.what


@pytest.mark.parametrize("name", ["../x", "/x", "x/y", "..", "a\0b"])
def test_a_set_is_written_into_its_folder_only(tmp_path, name):
    with pytest.raises(UserError, match="is not the name of a set"), sharded_writer(tmp_path, name):
        pytest.fail("written")


def test_a_section_of_a_checkpoint_is_a_file_of_its_folder(tmp_path):
    manifest = {"format": 1, "step": 3, "metadata": {}, "sections": {"../../weights": 1}}
    (tmp_path / "checkpoint.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="list of the checkpoint's sections is damaged"):
        Checkpoint(tmp_path)


def test_a_config_imports_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text("open('marker', 'w')")
    (tmp_path / "e.yaml").write_text("imports: [parts.py, parts]\nrecipe: demo_scenes\n")
    resolve("e.yaml")
    assert not (tmp_path / "marker").exists()


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), name
