"""The commands and the program of docs/data.md run in order, in a folder laid out as described."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from stillbox.cli.main import build_parser
from tests.records.builders import image_bytes
from tests.records.test_folder import picture

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
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
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_commands_and_program_run(folder, capsys):
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
