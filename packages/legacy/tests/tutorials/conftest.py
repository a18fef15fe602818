"""A folder of `stillbox tutorial`, and its scripts run in this process as `python SCRIPT ...`."""

import runpy
import shlex
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from stillbox.cli import main as program
from stillbox_legacy.tutorials.folder import write_folder
from tests.small import SHARED


@pytest.fixture(scope="session")
def research(tmp_path_factory):
    """The folder in place of `models/research`."""
    folder = tmp_path_factory.mktemp("models") / "research"
    write_folder(folder, overwrite=False)
    return folder


@pytest.fixture
def python(monkeypatch, capsys):
    """The function from a command line of a tutorial, `python SCRIPT FLAGS`, to what it prints."""
    # A program replaces its process, to get large pages.
    monkeypatch.setattr(program, "command", lambda: program.main(sys.argv[1:]))

    def run(line, code=0):
        first, script, *words = shlex.split(line)
        assert first == "python"
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [script, *words])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(script, run_name="__main__")
        out, err = capsys.readouterr()
        assert end.value.code == code, err
        return out + err

    return run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def imported(research, monkeypatch):
    """`import object_detection` from the folder, and none of it left behind."""
    monkeypatch.syspath_prepend(str(research))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "object_detection"]:
        del sys.modules[name]


def label_image(folder: Path, stem: str, boxes: dict[str, list[tuple[int, int, int, int]]]) -> None:
    """Writes an image of 96 x 64 pixels, and its XML as labelImg does."""
    folder.mkdir(parents=True, exist_ok=True)
    image = np.full((64, 96, 3), 90, np.uint8)
    objects = ""
    for name, places in boxes.items():
        for xmin, ymin, xmax, ymax in places:
            image[ymin:ymax, xmin:xmax] = 200
            objects += (
                f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{xmin}</xmin>"
                f"<ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>"
            )
    cv2.imwrite(str(folder / f"{stem}.jpg"), image)
    size = "<size><width>96</width><height>64</height><depth>3</depth></size>"
    text = f"<annotation><filename>{stem}.jpg</filename>{size}{objects}</annotation>"
    (folder / f"{stem}.xml").write_text(text)


@pytest.fixture
def labelled(tmp_path, monkeypatch):
    """The working directory, with ten labelled images in `images/all`."""
    for number in range(10):
        boxes = {"cat": [(8, 8, 40, 40)]} | ({"dog": [(50, 20, 90, 60)]} if number % 2 else {})
        label_image(tmp_path / "images" / "all", f"img_{number}", boxes)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def photographs(folder: Path, count: int = 20) -> None:
    """Copies photographs of blood cells with their XML files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = SHARED / "data" / "bccd"
    for image in sorted((data / "JPEGImages").glob("*.jpg"))[:count]:
        (folder / image.name).write_bytes(image.read_bytes())
        xml = data / "Annotations" / f"{image.stem}.xml"
        (folder / xml.name).write_bytes(xml.read_bytes())
