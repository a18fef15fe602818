"""Trackers of experiments, played by modules that note what they are told."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY
from stillbox.training import loop
from stillbox.training.loop import train
from stillbox.training.summaries import Summaries


class Wandb:
    """The module `wandb`, which is its own run."""

    def __init__(self):
        self.options, self.told, self.codes = [], [], []

    def init(self, **options):
        self.options.append(options)
        return self

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "step")

    def log(self, values):
        self.told.append(values)

    def finish(self, exit_code):
        self.codes.append(exit_code)

    def Image(self, picture):  # noqa: N802
        return ("picture", picture.shape)


class Mlflow:
    """The modules `mlflow` and `mlflow.entities`, which are their own client."""

    def __init__(self):
        self.groups, self.told, self.runs, self.statuses = {}, [], 0, []

    def MlflowClient(self):  # noqa: N802
        return self

    def Param(self, name, value):  # noqa: N802
        return name, value

    def Metric(self, name, value, timestamp, step):  # noqa: N802
        return step, name, value

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=self.groups[name]) if name in self.groups else None

    def create_experiment(self, name):
        self.groups[name] = "7"
        return "7"

    def create_run(self, group, run_name):
        assert group == "7"
        self.runs += 1
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run {self.runs}"))

    def update_run(self, run, status):
        self.statuses.append((run, status))

    def log_batch(self, run, params=(), metrics=()):
        assert len(params) <= 100
        self.told += [*params, *metrics]

    def log_text(self, run, text, name):
        self.told.append((name, text))

    def log_image(self, run, picture, key, step):
        self.told.append((step, key, picture.shape))

    def set_terminated(self, run, status):
        self.statuses.append((run, status))


@pytest.fixture
def wandb(monkeypatch):
    for name in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    module = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", module)
    return module


def report_all(directory, settings, from_step=0):
    directory.mkdir(exist_ok=True)
    with Summaries(directory, from_step=from_step, experiment=settings) as summaries:
        summaries.metrics(from_step + 1, {"loss": 1.5})
        summaries.evaluation(from_step + 1, {"AP": 0.25, "APs": None}, {"Detection/mAP": 0.25})
        summaries.image(from_step + 1, "train_input_images", np.zeros((2, 3, 3), np.uint8))


def test_wandb_has_configuration_metrics_scores_and_pictures(tmp_path, experiment, wandb):
    settings = experiment("train.loggers=[wandb]")
    report_all(tmp_path / "owls", settings)
    (options,) = wandb.options
    assert (options["project"], options["name"]) == ("stillbox", "owls")
    assert options["config"]["train"]["batch_size"] == settings.train.batch_size
    assert options["dir"] == str(tmp_path / "owls")
    assert wandb.told == [
        {"step": 1, "loss": 1.5},
        {"step": 1, "evaluation/AP": 0.25},
        {"step": 1, "train_input_images": ("picture", (2, 3, 3))},
    ]
    assert wandb.codes == [0]
    assert not (tmp_path / "owls/tensorboard").exists()


def test_mlflow_has_configuration_metrics_scores_and_pictures(tmp_path, experiment, mlflow):
    settings = experiment("train.loggers=[mlflow]")
    report_all(tmp_path / "owls", settings)
    assert ("train.batch_size", str(settings.train.batch_size)) in mlflow.told
    assert any(told[0] == "experiment.yaml" for told in mlflow.told)
    assert mlflow.told[-3:] == [
        (1, "loss", 1.5),
        (1, "evaluation/AP", 0.25),
        (1, "train_input_images", (2, 3, 3)),
    ]
    assert mlflow.statuses == [("run 1", "FINISHED")]


def test_a_run_that_is_resumed_goes_on_in_its_trackers(tmp_path, experiment, wandb, mlflow):
    settings = experiment("train.loggers=[wandb, mlflow]")
    for from_step in (0, 1):
        report_all(tmp_path, settings, from_step)
    first, second = (options["id"] for options in wandb.options)
    assert first == second
    assert mlflow.runs == 1
    assert mlflow.statuses[1] == ("run 1", "RUNNING")


def test_a_run_that_fails_is_marked_and_one_that_is_stopped_is_not(tmp_path, experiment, wandb):
    settings = experiment("train.loggers=[wandb]")
    for error in (FloatingPointError, KeyboardInterrupt):
        with pytest.raises(error), Summaries(tmp_path, from_step=0, experiment=settings):
            raise error
    assert wandb.codes == [1, 0]


def test_a_tracker_that_fails_is_reported_once_and_the_history_goes_on(
    tmp_path, experiment, wandb, capsys
):
    def fail(values):
        raise ConnectionError("the server is gone")

    wandb.log = fail
    report_all(tmp_path, experiment("train.loggers=[wandb]"))
    assert capsys.readouterr().err == (
        "warning: wandb has failed and gets no more of this run: the server is gone\n"
    )
    lines = [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 1]


def test_a_tracker_that_refuses_the_run_ends_it(tmp_path, experiment, wandb):
    def refuse(**options):
        raise ValueError("no API key")

    wandb.init = refuse
    with pytest.raises(UserError, match=r"train.loggers: wandb .*: no API key\n  fix: wandb login"):
        Summaries(tmp_path, from_step=0, experiment=experiment("train.loggers=[wandb]"))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_said_before_anything_is_opened(
    tmp_path, experiment, monkeypatch, name
):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(loop, "_open_data", lambda experiment: pytest.fail("it is too late"))
    with pytest.raises(UserError, match=f"{name} is not installed"):
        train(experiment(f"train.loggers=[tensorboard, {name}]"), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
