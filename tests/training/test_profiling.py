"""Traces of some steps: their steps, their content, and refused settings."""

import gzip
import json
import signal

import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.profiling.steps import ProfileSteps, refuse_steps_beyond_the_end
from stillbox.references import Parameter, worded
from stillbox.training import loop
from stillbox.training.loop import train
from tests.helpers import refusal, refused
from tests.signals import send_at


@pytest.mark.parametrize(
    ("text", "steps"),
    [("50,53", ProfileSteps(50, 53)), (" 50 , 53 ", ProfileSteps(50, 53)), ("0,0", None)],
)
def test_two_numbers_are_the_ends_of_a_trace_and_two_zeros_trace_nothing(text, steps):
    assert ProfileSteps.parse(text) == steps


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("5", "'5' is not the first and the last step", "give both, for example 5,5"),
        ("five,six", "'five,six' is not the first", "50,53"),
        ("5,6,7", "'5,6,7' is not the first", "50,53"),
        ("-5,6", "'-5,6' is not the first", "50,53"),
        ("", "'' is not the first", "50,53"),
        ("7,3", "there are no steps from 7 to 3", "the first step first"),
        ("0,3", "there are no steps from 0 to 3", "count from 1"),
    ],
)
def test_other_texts_than_steps_are_refused(text, message, fix):
    error = refusal(ProfileSteps.parse, text)
    assert message in error.what
    assert fix in error.fix
    assert error.about == Parameter("profile")


def test_steps_beyond_the_end_are_refused_and_told_where_the_end_is(tmp_path):
    refuse_steps_beyond_the_end(ProfileSteps(9, 10), tmp_path, 10)
    refuse_steps_beyond_the_end(ProfileSteps(900, 1000), tmp_path, None)
    refuse_steps_beyond_the_end(None, tmp_path, 10)
    with refused(Parameter("profile"), 9, 11, 10) as caught:
        refuse_steps_beyond_the_end(ProfileSteps(9, 11), tmp_path, 10)
    assert worded(caught.value.fix) == "profile=7,10"


def test_an_impossible_trace_is_refused_before_the_run(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "build_mesh", lambda *_: pytest.fail("a device is touched"))
    with refused(Parameter("profile")):
        train(experiment("train.steps=4"), tmp_path / "model", profile=ProfileSteps(4, 5))
    assert not (tmp_path / "model").exists()


def traces(directory):
    return sorted((directory / "plugins" / "profile").glob("*/perfetto_trace.json.gz"))


def marked_steps(path):
    """Number, start and end (microseconds) of the steps in a trace, as Perfetto reads them."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {
        int(event["args"]["step_num"]): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X" and event["name"] == "train"
    }


def test_exactly_the_steps_of_the_trace_are_traced(experiment, tmp_path, capfd):
    settings = experiment("train.steps=6", "train.checkpoint_every=9", evaluated=False)
    train(settings, tmp_path, profile=ProfileSteps(3, 5))
    (trace,) = traces(tmp_path)
    steps = marked_steps(trace)
    assert list(steps) == [3, 4, 5]
    ends = [moment for step in steps.values() for moment in step]
    assert ends == sorted(ends)
    # The file for XProf lies beside it.
    assert list(trace.parent.glob("*.xplane.pb"))
    error = capfd.readouterr().err
    assert f"trace of steps 3 to 5: open {trace} at https://ui.perfetto.dev" in error


def test_steps_are_counted_from_where_the_run_resumes(experiment, tmp_path, capfd):
    train(experiment("train.steps=2", evaluated=False), tmp_path)
    longer = experiment("train.steps=6", evaluated=False)
    with refused(Parameter("profile"), 4, 2, 6) as caught:
        train(longer, tmp_path, profile=ProfileSteps(4, 6))
    assert worded(caught.value.fix) == "profile=1,4"
    train(longer, tmp_path, profile=ProfileSteps(2, 4))
    (trace,) = traces(tmp_path)
    assert list(marked_steps(trace)) == [4, 5, 6]
    assert "trace of steps 4 to 6: " in capfd.readouterr().err
    with refused(Parameter("profile"), 0, 6) as caught:
        train(longer, tmp_path, profile=ProfileSteps(1, 1))
    assert caught.value.fix == "raise train.steps"


def test_a_run_that_is_stopped_inside_the_trace_closes_it(experiment, tmp_path, monkeypatch):
    send_at(monkeypatch, 3)
    settings = experiment("train.steps=0", evaluated=False)
    outcome = train(settings, tmp_path / "stopped", profile=ProfileSteps(2, 50))
    assert outcome.interrupted == signal.SIGTERM
    (trace,) = traces(tmp_path / "stopped")
    assert list(marked_steps(trace)) == [2, 3]
    # The next run may trace again, because no trace is open.
    monkeypatch.undo()
    train(experiment("train.steps=1", evaluated=False), tmp_path / "a", profile=ProfileSteps(1, 1))
    assert len(traces(tmp_path / "a")) == 1


def test_a_run_that_fails_inside_the_trace_closes_it(experiment, tmp_path, monkeypatch):
    def fail(*step):
        raise ZeroDivisionError

    monkeypatch.setattr(loop.MetricsGuard, "push", fail)
    with pytest.raises(ZeroDivisionError):
        train(experiment(evaluated=False), tmp_path / "failed", profile=ProfileSteps(1, 2))
    assert len(traces(tmp_path / "failed")) == 1


def test_a_trace_changes_no_number(experiment, tmp_path):
    arrays = []
    for name, profile in (("plain", None), ("traced", ProfileSteps(1, 2))):
        train(experiment("train.steps=2", evaluated=False), tmp_path / name, profile=profile)
        arrays.append(ModelDirectory.open(tmp_path / name).checkpoint(2).read("params"))
    assert arrays[0].keys() == arrays[1].keys()
    assert all((arrays[0][name] == arrays[1][name]).all() for name in arrays[0])
