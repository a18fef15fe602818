"""The commands and programs of docs/scaling.md run, section by section."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from stillbox.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
slow_with_ray = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    # As for test_ray_data.py and test_ray_serve.py.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings(
        "ignore:Using extra keyword arguments on .Field.:DeprecationWarning"
    ),
]


def needs(module):
    return pytest.mark.skipif(not find_spec(module), reason=f"{module} is not installed")


@pytest.fixture
def folder(documented_folder, tmp_path, monkeypatch):
    shutil.copytree(documented_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(section, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[section], re.DOTALL | re.MULTILINE)


def lines(section):
    return [
        line for block in blocks(section, "sh") for line in block.replace("\\\n", " ").splitlines()
    ]


def run(line):
    """Runs a command of the page; of `pip` it is checked that there is such an extra."""
    program, *words = shlex.split(line)
    if program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (extra,) = re.fullmatch(r"install -e \.\[(\w+)\]", " ".join(words)).groups()
        assert extra in project["optional-dependencies"]
        return
    assert program == "stillbox"
    assert main(words) == 0, line


def execute(program):
    exec(compile(program, "docs/scaling.md", "exec"), {"__name__": "__main__"})


def with_marks(*marks):
    def decorate(test):
        for mark in marks:
            test = mark(test)
        return test

    return decorate


def test_every_block_belongs_to_a_test():
    fenced = {
        title: re.findall(r"^```(\w+)$", text, re.MULTILINE) for title, text in SECTIONS.items()
    }
    assert fenced == {
        "Training": ["sh", "python"],
        "Detections in many files": ["sh", "python", "python"],
        "A deployment of Ray Serve": ["python", "sh", "json"],
        "Records": ["sh", "python"],
        "In existing pipelines": ["python"],
    }


@with_marks(*slow_with_ray)
def test_training(folder, ray_cluster, capsys):
    for line in lines("Training"):
        run(line)
    (program,) = blocks("Training", "python")
    capsys.readouterr()
    execute(program)
    assert capsys.readouterr().out == "finished at step 6\n"


@with_marks(*slow_with_ray)
def test_detections_in_many_files(folder, ray_cluster, capsys):
    title = "Detections in many files"
    for line in lines(title):
        run(line)
    reading, predicting = blocks(title, "python")
    capsys.readouterr()
    execute(reading)
    images = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(images) == ["photos/owl_1.jpg", "photos/owl_2.jpg"]
    execute(predicting)
    assert capsys.readouterr().out == "2 0 []\n"


@with_marks(*slow_with_ray)
def test_a_deployment_of_ray_serve(folder, ray_cluster, capsys):
    from ray import serve

    title = "A deployment of Ray Serve"
    (program,) = blocks(title, "python")
    (command,) = lines(title)
    (shown,) = map(json.loads, blocks(title, "json"))
    # A model of some steps finds little, and the answer has to hold something.
    execute(program.replace("min_score=0.3", "min_score=0"))
    try:
        answer = subprocess.run(shlex.split(command), check=True, capture_output=True)
    finally:
        serve.shutdown()
    real = json.loads(answer.stdout)
    assert real.keys() == shown.keys()
    assert real["detections"][0].keys() == shown["detections"][0].keys()
    assert real["detections"][0]["box"].keys() == shown["detections"][0]["box"].keys()


@with_marks(*slow_with_ray)
def test_records(folder, ray_cluster, capsys):
    for line in lines("Records"):
        run(line)
    (records,) = Path("ray-coco").glob("train.record-*")
    assert records.read_bytes() == Path("owls/records", records.name).read_bytes()
    capsys.readouterr()
    (program,) = blocks("Records", "python")
    execute(program)
    assert capsys.readouterr().out.endswith("True\n")


@needs("pyspark")
def test_a_pipeline_of_spark(folder, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (program,) = blocks("In existing pipelines", "python")
    execute(program)
    paths = parquet.read_table("spark-detections").column("path").to_pylist()
    assert sorted(Path(path).name for path in paths) == ["owl_1.jpg", "owl_2.jpg"]
