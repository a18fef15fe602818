"""`stillbox train` without --model-dir: the same command goes on, another begins anew."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from stillbox.checking import planning, time_limit
from stillbox.checkpoints.files import DirectoryLock
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.cli.run_folder import COMMAND
from stillbox.training import preparing
from stillbox.training.probing import Costs
from tests.signals import send_at
from tools.kill_runs import same_bits

pytestmark = pytest.mark.usefixtures("shared_programs")

# Runs a command line that kills itself after step 3, as soon as a thread has written checkpoint 2.
_KILLED = """
import os, pathlib, signal, sys, time
from stillbox.cli.main import main
from stillbox.training import loop

class Guard(loop.MetricsGuard):
    def push(self, step, *rest):
        super().push(step, *rest)
        if step == 3:
            while not list(pathlib.Path("runs").glob("*/checkpoints/2")):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

loop.MetricsGuard = Guard
main(sys.argv[1:])
"""


@pytest.fixture
def words(settings, here):
    """The words of a command without --model-dir: four steps, a checkpoint after two."""
    fields = settings(evaluated=False)
    place = fields.index("train.steps=4")
    return ["train", "demo_scenes", "--steps", "4", *fields[: place - 1], *fields[place + 1 :]]


def steps(folder):
    return ModelDirectory.open(folder).steps()


def stop(stillbox, words, monkeypatch, step=1):
    """Stops a command by Ctrl-C after a step."""
    with monkeypatch.context() as patch:
        send_at(patch, step, signal.SIGINT)
        answer = stillbox(*words)
    assert answer.code == 130
    return answer.err


def test_the_same_command_goes_on_after_ctrl_c_and_a_finished_run_is_left_alone(
    stillbox, words, here, monkeypatch
):
    stillbox(*words, "--model-dir", "whole").ended()
    err = stop(stillbox, words, monkeypatch)
    assert "the model directory is runs/demo_scenes\n" in err
    (line,) = [line for line in err.splitlines() if line.startswith("next: ")]
    again = shlex.split(line.removeprefix("next: "))
    assert again == ["stillbox", *map(str, words)]
    _, err = stillbox(*again[1:]).ended()
    assert "going on with runs/demo_scenes" in err
    assert "--model-dir runs/demo_scenes-2 begins anew" in err
    assert "resuming at step 1 from runs/demo_scenes" in err
    assert same_bits(here / "whole", here / "runs/demo_scenes")
    _, err = stillbox(*words).ended()
    assert "runs/demo_scenes-2: the run in runs/demo_scenes is finished" in err
    assert steps("runs/demo_scenes-2") == (2, 4)


@pytest.mark.slow
def test_the_same_command_goes_on_after_a_kill(words, here):
    plain, killed = ["-m", "stillbox.cli.main"], ["-c", _KILLED]

    def run(program, *more):
        command = [sys.executable, *program, *map(str, words), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    run(plain, "--model-dir", "whole").check_returncode()
    assert run(killed).returncode == -signal.SIGKILL
    assert steps("runs/demo_scenes") == (2,)
    again = run(plain)
    assert "resuming at step 2 from runs/demo_scenes" in again.stderr
    assert same_bits(here / "whole", here / "runs/demo_scenes")


def test_a_run_that_was_stopped_before_its_first_checkpoint_is_gone_on_with(
    stillbox, words, here, monkeypatch
):
    def compile_slowly(self):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal came before")

    with monkeypatch.context() as patch:
        patch.setattr(preparing.Compilation, "result", compile_slowly)
        assert stillbox(*words).code == 130
    _, err = stillbox(*words).ended()
    assert "going on with runs/demo_scenes" in err
    assert [entry.name for entry in (here / "runs").iterdir()] == ["demo_scenes"]


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        (["--steps", "3"], "--steps 4 -> 3"),
        (["--set", "train.seed=5"], "train.seed=5"),
        (["--weights", "none"], "--weights not given -> none"),
    ],
)
def test_another_command_begins_a_run_and_names_the_one_that_goes_on(
    stillbox, words, monkeypatch, more, changed
):
    stop(stillbox, words, monkeypatch)
    _, err = stillbox(*words, *more).ended()
    assert "the model directory is runs/demo_scenes-2" in err
    assert changed in err
    assert "`stillbox train --model-dir runs/demo_scenes` goes on with that run" in err
    assert steps("runs/demo_scenes") == (1,)


def test_a_field_of_the_machine_does_not_make_another_command(stillbox, words, monkeypatch):
    stop(stillbox, words, monkeypatch)
    more = ["--set", "data.workers=2", "--set", "train.log_every=3"]
    assert "resuming at step 1" in stillbox(*words, *more).ended()[1]


def test_a_config_that_was_edited_begins_a_run(stillbox, words, here, monkeypatch):
    text = "recipe: demo_scenes\nname: own\n"
    (here / "own.yaml").write_text(text)
    words = ["train", "own.yaml", *words[2:]]
    stop(stillbox, words, monkeypatch)
    (here / "own.yaml").write_text(f"{text}train: {{seed: 3}}\n")
    _, err = stillbox(*words).ended()
    assert "the model directory is runs/own-2" in err


def test_a_folder_of_somebody_else_is_left_alone(stillbox, words, here):
    (here / "runs/demo_scenes").mkdir(parents=True)
    (here / "runs/demo_scenes" / COMMAND).write_text('{"asked": {}, "finished": false}')
    _, err = stillbox(*words).ended()
    assert "the model directory is runs/demo_scenes-2" in err
    assert [entry.name for entry in (here / "runs/demo_scenes").iterdir()] == [COMMAND]
    # Gone on with by its directory alone.
    out, _ = stillbox("train", "--model-dir", "runs/demo_scenes-2").ended()
    assert "nothing is left" in out
    _, err = stillbox("train").ended(2)
    assert "nothing says what to train" in err


@pytest.mark.parametrize("lock", [".lock", ".command"])
def test_a_run_that_is_going_on_is_left_alone(stillbox, words, here, monkeypatch, lock):
    stop(stillbox, words, monkeypatch)
    held = DirectoryLock(here / "runs/demo_scenes", lock)
    _, err = stillbox(*words).ended()
    assert "runs/demo_scenes-2: the run in runs/demo_scenes is going on" in err
    held.release()
    # The newest run is finished, and this one still is not.
    assert "going on with runs/demo_scenes," in stillbox(*words).ended()[1]


def test_a_refused_command_leaves_no_folder(refused, words, here):
    refused(*words, "--set", "data.train.paths=nowhere/train-*")
    assert not list(here.iterdir())


def test_data_are_compared_before_their_run_goes_on(stillbox, scenes, settings, here, monkeypatch):
    shutil.copytree(scenes, here / "shapes")
    words = ["train", "demo_scenes", "--data", "shapes", *settings(evaluated=False)]

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(planning, "records_of", interrupt)
        assert stillbox(*words).code == 130
    assert "going on with runs/shapes," in stop(stillbox, words, monkeypatch)
    (here / "shapes/more.txt").write_text("one file more")
    _, err = stillbox(*words).ended()
    assert "runs/shapes-2: the run in runs/shapes was begun with other data" in err


@pytest.fixture
def costs(monkeypatch):
    """Runs in minutes are not measured: they have a second for each step and two to start."""
    costs = Costs(start=2.0, compilation=0.0, step=1.0, evaluation=0.5)
    monkeypatch.setattr(time_limit, "measure", lambda *arguments: costs)


def of_minutes(words, minutes):
    return ["train", "demo_scenes", "--minutes", minutes, *words[4:]]


@pytest.mark.usefixtures("costs")
def test_a_run_in_minutes_keeps_its_steps_when_it_goes_on(stillbox, words, here, monkeypatch):
    words = of_minutes(words, "0.5")
    said = stop(stillbox, words, monkeypatch)
    # .98 * 30 - 2 seconds, less those since the call.
    planned = int(re.search(r"0\.5 minutes: (\d+) steps of 1 s", said)[1])
    assert 12 <= planned <= 27
    _, err = stillbox(*words).ended()
    assert f"the run in runs/demo_scenes keeps the {planned} steps that it began with" in err
    assert steps("runs/demo_scenes")[-1] == planned
    stored = ModelDirectory.open("runs/demo_scenes").read_experiment().train
    assert stored.steps == planned


@pytest.mark.usefixtures("costs")
def test_too_few_minutes_are_refused_with_the_least_that_would_do(refused, words, here):
    message = refused(*of_minutes(words, "0.1"))
    assert re.search(r"--minutes: 0\.1 minutes are too few .*\n  fix: .*--minutes 0\.\d", message)
    assert not list(here.iterdir())


def test_a_run_has_one_length(stillbox, words):
    _, err = stillbox(*words, "--minutes", "3").ended(2)
    assert "--minutes: not allowed with argument --steps" in err
    _, err = stillbox(*of_minutes(words, "3"), "--set", "train.steps=5").ended(2)
    assert "stillbox train: --minutes: a run has one length" in err


@pytest.mark.slow
def test_a_run_in_minutes_takes_them(words, here):
    # Large enough that a step takes longer than what the loop does beside it.
    fields = ["model.resizer.height=320", "model.resizer.width=320", "train.log_every=20"]
    fields += ["train.checkpoint_every=1000"]
    more = [word for field in fields for word in ("--set", field)]
    command = [sys.executable, "-m", "stillbox.cli.main", *of_minutes(words, "1"), *more]
    began = time.monotonic()
    subprocess.run(list(map(str, command)), check=True, timeout=300)
    # Other programs may slow it down or end while it goes on.
    assert 30 < time.monotonic() - began < 120
