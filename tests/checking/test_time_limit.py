"""Minutes as the length of a run: what is fixed from the measured costs, and what is refused."""

import time
from dataclasses import replace

import pytest

import stillbox
from stillbox.checking import time_limit as limits
from stillbox.checking.time_limit import TimeLimit, time_limit
from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import read_config
from stillbox.references import Parameter
from stillbox.training.length import set_length
from stillbox.training.probing import Costs
from tests.helpers import refused

MINUTES = Parameter("minutes")
COSTS = Costs(start=10.0, compilation=50.0, step=0.5, evaluation=2.0)


@pytest.fixture
def fit(experiment, tmp_path, monkeypatch):
    """The function from fields to the run of so many minutes with `COSTS`, and what was said."""

    def run(
        *fields,
        minutes=2.0,
        gone=0.0,
        compilation=COSTS.compilation,
        compiled_in=None,
        is_planned=False,
        overrides=(),
        **options,
    ):
        def compile_ahead(experiment):
            now[0] += compiled_in

        costs, now = replace(COSTS, compilation=compilation), [1000.0]
        monkeypatch.setattr(limits, "measure", lambda *arguments: costs)
        monkeypatch.setattr(limits, "compile_ahead", compile_ahead)
        monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
        read = read_config(experiment(*fields, **options), changes_of(overrides))
        limit = TimeLimit(
            minutes=minutes,
            began=time.monotonic() - gone,
            overrides=changes_of(overrides),
            is_planned=is_planned,
        )
        said = []
        fitted = limit.fit(set_length(read), ModelPlace(tmp_path / "run"), said.append)
        return fitted.experiment.train, "\n".join(said)

    return run


def test_the_steps_that_fit_are_fixed(fit):
    # .98 * 120 - 10 = 107.6 s, less one evaluation of 2 s: 211 steps of half a second.
    train, said = fit()
    assert train.steps == 211
    assert "2 minutes: 211 steps of 0.5 s and 1 evaluation of 2 s" in said
    # 20 s have gone by, for the conversion of a folder perhaps.
    assert fit(gone=20.0)[0].steps == 171
    assert fit(evaluated=False)[0].steps == 215


def test_a_schedule_that_is_stretched_is_compiled_once_more(fit):
    # 50 s of compilation are 100 steps less.
    cosine = "train.optimizer.schedule={kind: cosine, warmup_steps: 1}"
    train, _ = fit(cosine)
    assert train.steps == 111
    assert train.optimizer.schedule.total_steps == 111
    # 4 steps of the experiment had a warm-up of one.
    assert train.optimizer.schedule.warmup_steps == 28


def test_the_evaluations_of_an_experiment_are_kept_up_to_a_tenth_of_the_time(fit):
    # Every 100 steps: 3 evaluations, which leave 203 steps.
    train, _ = fit("train.evaluate_every=100")
    assert (train.steps, train.evaluate_every) == (203, 100)
    # Every 10 steps would take 40 s; a tenth of 2 minutes is 6 evaluations, which leave 191 steps.
    train, said = fit("train.evaluate_every=10")
    assert (train.steps, train.evaluate_every) == (191, 32)
    assert "6 evaluations" in said
    # What is set wins: 11 evaluations and 107 steps take 75.5 s, as do 5 more with 50 more.
    train, _ = fit(overrides=["train.evaluate_every=10"])
    assert train.evaluate_every == 10
    assert 0.5 * train.steps + 2 * -(-train.steps // 10) <= 107.6


def test_a_planned_run_keeps_its_number_of_evaluations_and_settles_its_norms(fit):
    fields = ("train.steps=4000", "train.evaluate_every=1000", "train.checkpoint_every=500")
    train, _ = fit(*fields, is_planned=True, compiled_in=50.0)
    # Norms that settle in so few steps make another program, which is compiled for 50 s. Three
    # evaluations leave (107.6 - 50 - 8) / .5 steps, at least 25 steps apart.
    assert (train.steps, train.evaluate_every, train.checkpoint_every) == (99, 33, 13)
    # The same takes 5 s by the measurement and 12 s in fact: of 58.8 s there are 36.8, in which 65
    # steps are followed by two evaluations, 25 steps apart.
    train, said = fit(*fields, is_planned=True, minutes=1.0, compilation=5.0, compiled_in=12.0)
    assert (train.steps, train.evaluate_every) == (65, 33)
    assert "batch norm settles within the run" in said


def test_too_few_minutes_are_refused_with_the_least_that_do(fit):
    with refused(MINUTES, "10 steps") as error:
        fit(minutes=0.2, gone=5.0)
    # 5 + 10 + 10 * .5 + 2 = 22 s, of which .98 * 24 s is more.
    assert "0.4" in str(error.value)
    assert fit(minutes=0.4, gone=5.0)[0].steps >= 10


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"steps": 3}, "one length"),
        ({"epochs": 1.5}, "one length"),
        ({"overrides": {"train.steps": 3}}, "train.steps"),
        ({"minutes": 0.0}, "0 minutes"),
        ({"minutes": float("nan")}, "nan minutes"),
        ({"on_ray": True}, "Ray"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(options, value):
    usual = {"minutes": 5.0, "began": 0.0, "steps": None, "epochs": None, "overrides": {}}
    with refused(MINUTES, value):
        time_limit(**(usual | {"is_planned": False, "on_ray": False} | options))


def test_a_run_of_python_takes_minutes(experiment, tmp_path, monkeypatch, shared_programs):
    costs = Costs(start=2.0, compilation=0.0, step=1.0, evaluation=0.5)
    monkeypatch.setattr(limits, "measure", lambda *arguments: costs)
    said = []
    small = experiment(evaluated=False)
    outcome = stillbox.train(small, tmp_path / "run", minutes=0.4, say=said.append)
    # .98 * 24 - 2 seconds, less those since the call.
    assert 10 <= outcome.step <= 21
    assert f"0.4 minutes: {outcome.step} steps" in said[-1]


def test_no_minutes_are_no_limit():
    same = {"steps": 3, "epochs": None, "overrides": {}, "is_planned": False, "on_ray": True}
    assert time_limit(None, 0.0, **same) is None
