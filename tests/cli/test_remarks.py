"""What is said before and after the work: warnings and notes, and the command that comes next."""

from argparse import Namespace
from dataclasses import replace

import pytest

from stillbox.cli.arguments import show_remarks
from stillbox.cli.models import say_next_with_model
from stillbox.cli.running import show_findings
from stillbox.experiment.resolve import resolve

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")


@pytest.fixture
def demo():
    """The recipe demo_scenes with a batch of its own, without warnings and notes."""
    return replace(resolve("demo_scenes", ["train.batch_size=8"]), warnings=(), notes=())


def test_five_remarks_are_printed_and_the_command_that_prints_the_others(demo, capsys):
    noted = replace(demo, notes=("eighth", "ninth"))
    show_remarks(noted, ["first", *"234567"], notes=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["warning: first", "warning: 2"]
    assert lines[5:] == [
        "and 4 more: `stillbox check demo_scenes --set train.batch_size=8 --notes`"
    ]


def test_what_was_read_of_no_file_is_checked_in_the_model_directory(demo, capsys):
    show_remarks(replace(demo, source=""), ["a"] * 6, also_in="runs/a b/experiment.yaml")
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "and 1 more: `stillbox check 'runs/a b/experiment.yaml' --notes`"


def test_the_worst_is_first_nothing_is_said_twice_and_notes_are_said_once(
    demo, capsys, tmp_path, trained_once
):
    said = (f"{demo.source}:1:1: of the reader", "without a place")
    resolved = replace(demo, warnings=said, notes=("a note",))
    show_findings(resolved, tmp_path / "new")
    first = capsys.readouterr().err.splitlines()
    assert first[:2] == [f"warning: {text}" for text in said]
    assert "note: a note" in first
    assert len([line for line in first if "without a place" in line]) == 1
    show_findings(resolved, trained_once)
    assert "note:" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "run --set a=1"),
        ({"step": "all"}, "run --set a=1"),
        ({"step": "7", "runtime": ""}, "run --step 7 --set a=1"),
        ({"weights": "my file.npz"}, "run --weights 'my file.npz' --set a=1"),
    ],
)
def test_the_command_that_comes_next_takes_the_same_model(given, words, capsys):
    usual = {"config": "run", "overrides": ["a=1"], "weights": None, "step": None}
    say_next_with_model(Namespace(**(usual | given)), "predict", "IMAGES")
    assert capsys.readouterr() == ("", f"next: stillbox predict {words} IMAGES\n")
