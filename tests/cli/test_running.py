"""What verbs share: progress without a terminal, remarks before and after the work, traces."""

import gzip
import json
import re
import shutil
import threading
from argparse import Namespace
from dataclasses import replace
from functools import partial

import pytest

from stillbox.cli import arguments, running
from stillbox.cli.arguments import show_remarks
from stillbox.cli.main import main
from stillbox.cli.overrides import changes_of
from stillbox.cli.running import say_next_with_model, show_findings
from stillbox.experiment.resolve import resolve
from stillbox.profiling.steps import ProfileSteps
from stillbox.training import loop
from stillbox.training.loop import Outcome

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")


def test_without_a_terminal_lines_say_how_far_long_work_is(capsys, monkeypatch):
    monkeypatch.setattr(running, "announcing", partial(running.announcing, first=0.01))
    pause = threading.Event()
    with running.progress_bar("images") as progress:
        err = ""
        progress(320, 5000)
        while not re.search(r"images: 320 of 5000, [0-9.]+/s: ", err):
            pause.wait(0.005)
            err += capsys.readouterr().err
    assert err.count("320 of") == 1  # what does not move is not repeated


def test_short_work_prints_nothing_without_a_terminal(capsys):
    with running.progress_bar("images") as progress:
        progress(1, 1)
    assert capsys.readouterr().err == ""


@pytest.fixture
def demo():
    """The recipe demo_scenes with a batch of its own, without warnings and notes."""
    return replace(
        resolve("demo_scenes", changes_of(["train.batch_size=8"])), warnings=(), notes=()
    )


def test_five_remarks_are_printed_and_the_command_that_prints_the_others(demo, capsys):
    noted = replace(demo, notes=("eighth", "ninth"))
    show_remarks(noted, ["first", *"234567"], notes=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["warning: first", "warning: 2"]
    assert lines[5:] == [
        "and 4 more: `stillbox check demo_scenes --set train.batch_size=8 --notes`"
    ]


def test_parts_of_the_user_are_imported_by_the_command_that_prints_the_others(
    demo, capsys, monkeypatch
):
    monkeypatch.setattr(arguments, "imports_of", lambda experiment: ("my parts.py",))
    show_remarks(demo, ["first", *"23456"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert "stillbox check demo_scenes --import 'my parts.py' --set train.batch_size=8" in last


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
    # What a run that goes on does not take of its own experiment.
    show_findings(replace(resolved, source=str(trained_once / "experiment.yaml")), trained_once)
    assert "note: a note" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "run --set a=1"),
        ({"step": "all"}, "run --set a=1"),
        ({"step": "7", "runtime": ""}, "run --step 7 --set a=1"),
        ({"weights": "my file.npz"}, "run --weights 'my file.npz' --set a=1"),
        ({"imports": ["a b.py", "c"]}, "run --import 'a b.py' --import c --set a=1"),
    ],
)
def test_the_command_that_comes_next_takes_the_same_model(given, words, capsys):
    usual = {"config": "run", "overrides": {"a": 1}, "weights": None, "step": None, "imports": []}
    say_next_with_model(Namespace(**(usual | given)), "predict", "IMAGES")
    assert capsys.readouterr() == ("", f"next: stillbox predict {words} IMAGES\n")


def marked(folder, name):
    """Numbers of the steps that a trace holds under a name."""
    (path,) = folder.glob("plugins/profile/*/perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [
        int(event["args"]["step_num"])
        for event in events
        if event.get("ph") == "X" and event["name"] == name
    ]


def test_batches_of_an_evaluation_are_traced(stillbox, trained, tmp_path):
    out, err = stillbox("evaluate", trained, "--output", tmp_path, "--profile", "2,2").ended()
    assert "trace of steps 2 to 2: open" in err
    assert "trace of" not in out  # scores are for other programs to read
    assert marked(tmp_path, "evaluate") == [2]


def test_batches_are_counted_over_all_checkpoints(stillbox, trained, tmp_path):
    """Two checkpoints of two batches each: the third batch is the second one's first."""
    words = ["--step", "all", "--output", tmp_path, "--profile", "3,4"]
    stillbox("evaluate", trained, *words).ended()
    assert marked(tmp_path, "evaluate") == [3, 4]


def test_batches_of_a_prediction_are_traced(stillbox, trained, scenes, tmp_path):
    photos = sorted((scenes / "images/val").iterdir())[:3]
    words = ["--output", tmp_path, "--profile", "2,3"]
    out, _ = stillbox("predict", trained, *photos, *words).ended()
    assert "trace of steps 2 to 3: open" in out
    assert marked(tmp_path, "predict") == [2, 3]


def test_a_trace_that_never_began_is_no_failure(stillbox, trained, tmp_path):
    _, err = stillbox("evaluate", trained, "--output", tmp_path, "--profile", "3,4").ended()
    assert "warning: nothing was traced: there was no step 3 in this run" in err


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_other_texts_than_steps_are_refused(stillbox, trained, scenes, tmp_path, verb):
    photos = sorted((scenes / "images/val").iterdir())[:1] if verb == "predict" else []
    words = [verb, trained, *photos, "--output", tmp_path, "--profile", "3"]
    _, err = stillbox(*words).ended(2)
    assert "--profile: '3' is not the first and the last step of a trace" in err


def test_the_front_doors_hand_it_on(tmp_path, monkeypatch, scenes, much_memory):
    seen = []

    def train(experiment, directory, origins, profile, hint):
        seen.append(profile)
        return Outcome(step=1, reason="finished", scores=None)

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.chdir(tmp_path)
    shutil.copy(scenes / "label_map.pbtxt", tmp_path)
    (tmp_path / "p.yaml").write_text("recipe: ssd_mobilenet_v1_300x300\nmodel: {num_classes: 6}\n")
    sets = [f"data.train.paths={scenes}/train.record-*", "data.train.label_map=label_map.pbtxt"]
    words = [word for text in sets for word in ("--set", text)]
    assert main(["model_main", "--pipeline_config_path=p.yaml", "--model_dir=run", *words]) == 0
    assert main(["model_main", "--pipeline_config_path=p.yaml", "--model_dir=run", *words,
                 "--profile", "5,8"]) == 0  # fmt: skip
    override = "{ train: { checkpoint: { path: '' }, train_file_pattern: x/train-* } }"
    words = ["retinanet", "--model_dir=run", f"--params_override={override}"]
    assert main([*words, "--profile", "50,53"]) == 0
    assert seen == [None, ProfileSteps(5, 8), ProfileSteps(50, 53)]
