"""docs/parts.md: its files are written and its commands run, in a process of their own.

In this process, the kinds of the page would be members of their families in every later test.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stillbox.experiment.yaml_config import to_yaml
from tests.small import small_experiment

# One worker runs these tests one after the other: the kind is registered meanwhile.
pytestmark = pytest.mark.xdist_group("one_box")

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS.joinpath("parts.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]
RUN = """\
import json, shlex, sys
from stillbox.cli.main import main
for command in json.load(sys.stdin):
    print(">", main(shlex.split(command)[1:]), flush=True)
"""


@pytest.fixture(scope="module")
def done(scenes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "tiny.yaml").write_text(to_yaml(small_experiment(scenes, "train.steps=2")))
    (folder / "short.steps").write_text("demo_scenes 100\n")
    words = [sys.executable, "-c", RUN]
    text = json.dumps(COMMANDS)
    run = subprocess.run(words, input=text, capture_output=True, text=True, cwd=folder, check=False)
    return folder, run


def test_the_page_has_a_loss_an_augmentation_a_backbone_and_a_reader():
    assert list(FILES) == ["charbonnier.py", "invert.py", "plain.py", "steps.py"]
    assert len(COMMANDS) == 4


def test_every_command_of_the_page_does_what_it_says(done):
    _, run = done
    codes = [line for line in run.stdout.splitlines() if line.startswith("> ")]
    # `check` returns 1 for its findings, which the small experiment has.
    assert codes[0] in ("> 0", "> 1"), run.stderr
    assert codes[1:] == ["> 0", "> 0", "> 0"], run.stderr


def test_the_model_directory_of_the_page_names_its_parts_and_was_trained_with_them(done):
    folder, _ = done
    text = (folder / "runs/plain/experiment.yaml").read_text()
    assert sorted(re.findall(r"(\w+\.py)", text.splitlines()[0])) == sorted(list(FILES)[:3])
    with np.load(folder / "runs/plain/checkpoints/2/params.npz") as arrays:
        assert "backbone.conv_3.kernel" in arrays.files


def test_the_reader_of_the_page_reads_its_file(done):
    _, run = done
    assert re.search(r"^  steps: 100 ", run.stdout, re.MULTILINE)
    assert re.search(r"^name: short$", run.stdout, re.MULTILINE)


def test_an_entry_point_makes_parts_available_without_import(done, tmp_path):
    folder, _ = done
    (tmp_path / "own_parts.py").write_text(FILES["charbonnier.py"])
    information = tmp_path / "own_parts-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[stillbox.parts]\nown = own_parts\n")
    words = ["config", str(folder / "tiny.yaml"), "--set", "model.loss.localization=charbonnier"]
    code = f"import sys; sys.path.append({str(tmp_path)!r}); from stillbox.cli.main import main"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit(main({words!r}))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("imports: [own_parts]\n")
    assert re.search(r"kind: charbonnier .*\n +epsilon: 0\.001", run.stdout)
