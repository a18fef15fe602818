"""What docs/experiment.md shows works as it is shown."""

import re
import shlex
from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check
from stillbox.experiment.yaml_config import read_yaml

PAGE = (Path(__file__).parents[2] / "docs" / "experiment.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_yaml_example_is_a_sound_experiment(text):
    reading = read_yaml(text, "example.yaml")
    check(reading.experiment, reading.origins)


@pytest.mark.parametrize(
    "line", [line for block in blocks("console") for line in block.splitlines()]
)
def test_every_command_line_resolves(line):
    words = shlex.split(line)
    assert words[:3] == ["$", "stillbox", "config"]
    resolve(words[3], [word for word in words[4:] if word != "--set"])


def test_the_python_example_runs(capsys):
    (example,) = blocks("python")
    exec(compile(example, "docs/experiment.md", "exec"), {})
    assert "--set train.batch_size=32" in capsys.readouterr().out


def test_the_errors_are_those_of_the_page():
    first, second = blocks("text")
    with pytest.raises(UserError) as caught:
        read_pipeline_config("\n" * 11 + "model { ssd { \n num_clases: 1 } }", "pets.config")
    assert str(caught.value).partition(" ")[2] == first.strip().partition(" ")[2]
    with pytest.raises(UserError) as caught:
        resolve("ssd_mobilenet_v1_300x300", ["model.anchors.num_layers=5"])
    assert str(caught.value) == second.strip()
