"""docs/serving.md: its commands are parsed, its requests sent, its tables checked."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from stillbox.cli.main import build_parser
from stillbox.cli.serve import _settings
from stillbox.predicting.predictor import Predictor
from stillbox.serving.app import build_app
from stillbox.serving.settings import ServeSettings
from tests.serving.conftest import running

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8501"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def commands():
    """Returns every command of a shell block, as it stands there."""
    return [
        line
        for block in blocks("sh")
        for line in re.sub(r"\\\n", " ", re.sub(r"\[1\],\n", "[1], ", block)).splitlines()
        if line
    ]


CALLS = [line for line in commands() if "curl" in line]


@pytest.fixture(scope="module")
def served(small_backend, tmp_path_factory):
    """Address of a server for the tiny model, and a folder with photographs."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8))
    image.save(folder / "photos" / "owl_1.jpg")
    settings = ServeSettings(name="owls", batch_sizes=(1,), min_score=0.0)
    with running(build_app(Predictor(small_backend), settings)) as (_, address):
        yield address, folder


def test_every_command_is_run_or_parsed():
    assert len(CALLS) == 14
    others = [line for line in commands() if line not in CALLS]
    assert others[0] == "pip install -e '.[serve]'"
    for line in others[1:]:
        words = [word for word in shlex.split(line) if not word.startswith("STILLBOX_API_KEY=")]
        assert words[0] == "stillbox"
        _settings(build_parser().parse_args(words[1:]))


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("line", CALLS)
def test_requests_are_answered(served, line):
    address, folder = served
    line = line.replace(ADDRESS, address).replace("curl", "curl --silent --fail-with-body", 1)
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == 0, done
    if "--output" in line:
        with Image.open(folder / "owl_1.png") as picture:
            assert picture.size == (480, 360)  # small ones are enlarged
    elif "metrics" not in line:
        assert isinstance(json.loads(done.stdout), dict)


def test_the_client_in_python(served, monkeypatch, capsys):
    address, folder = served
    monkeypatch.chdir(folder)
    (program,) = blocks("python")
    exec(program.replace(ADDRESS, address), {})
    assert float(capsys.readouterr().out.split()[0]) > 0


def test_the_shown_response_has_the_form_of_a_real_one(served):
    address, folder = served
    content = (folder / "photos" / "owl_1.jpg").read_bytes()
    real = httpx.post(f"{address}/detect", content=content).json()
    (shown,) = map(json.loads, blocks("json"))
    assert shown.keys() == real.keys()
    assert shown["detections"][0].keys() == real["detections"][0].keys()
    assert shown["detections"][0]["box"].keys() == real["detections"][0]["box"].keys()


def rows(heading):
    """Returns the rows of the table with this heading, cell by cell."""
    table = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0]
    cells = (line.split("|")[1:-1] for line in table.split("\n")[2:])
    return [[cell.strip().strip("`") for cell in row] for row in cells]


def test_the_defaults_are_those_of_the_program():
    for option, shown, _ in rows("option"):
        default = getattr(ServeSettings(), option.removeprefix("--").replace("-", "_"))
        if option == "--batch-sizes":
            assert default is None
            assert shown == "1,2,4,8"
        else:
            assert float(shown) == default, option


def test_every_metric_is_in_the_table(served):
    text = httpx.get(f"{served[0]}/metrics").text
    real = {
        family.name + "_total" * (family.type == "counter")
        for family in text_string_to_metric_families(text)
        if family.name.startswith("stillbox_") and not family.name.endswith("_created")
    }
    assert {name for name, _ in rows("metric")} == real
