"""docs/devices.md: what it starts on other machines is what the command line understands."""

import dataclasses
import re
import shlex
from pathlib import Path

from stillbox.cli.arguments import find_own_place
from stillbox.cli.main import build_parser, main
from stillbox.devices.launcher import find_place
from stillbox.experiment import schema

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "devices.md").read_text(encoding="utf-8")


def commands():
    """Returns the words of every call of stillbox, whoever makes it."""
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("$OMPI_COMM_WORLD_RANK", "15"), comments=True)
            # Some launchers take the command as one word.
            inner = next((word for word in words if word.startswith("stillbox ")), None)
            words = shlex.split(inner) if inner else words
            yield words[words.index("stillbox") + 1 :]


def test_every_command_is_understood():
    found = list(commands())
    assert len(found) == 8
    for words in found:
        verb, *rest = words
        build_parser().parse_args(["ssd_resnet34" if verb == "ssd.py" else verb, *rest])


def test_processes_that_are_numbered_by_hand_make_a_job():
    places = [
        find_own_place(build_parser().parse_args(words))
        for words in commands()
        if "--coordinator" in words
    ]
    assert [(place.index, place.count) for place in places] == [(0, 2), (1, 2), (15, 16)]


def test_what_gke_sets_is_all_that_is_needed():
    names = re.findall(r"`(TPU_\w+)`", PAGE)
    assert find_place(dict(zip(names, ("1", "a,b"), strict=True))).index == 1


def test_every_field_is_there_and_the_command_that_sets_one_works(capsys):
    fields = {field.name for field in dataclasses.fields(schema.Devices)}
    assert set(re.findall(r"^\| `devices\.(\w+)`", PAGE, re.MULTILINE)) == fields
    (words,) = (words for words in commands() if words[0] == "config")
    assert main(words) == 0
    assert "replicas: 8" in capsys.readouterr().out
