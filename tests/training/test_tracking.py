"""Trackers of experiments, replaced by modules that record their calls."""

import io
import json
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary as SummaryProto

from stillbox.checkpoints.files import DirectoryLock
from stillbox.devices.announcing import StallReporter
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.training import loop
from stillbox.training.loggers import EventFile
from stillbox.training.loop import train
from stillbox.training.summaries import Summaries
from tests.helpers import refused
from tests.records.builders import read_records


class Wandb:
    """The module `wandb`, and a run of it."""

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
    """The modules `mlflow` and `mlflow.entities`, and a client."""

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
    with refused("train.loggers", "API"):
        Summaries(tmp_path, from_step=0, experiment=experiment("train.loggers=[wandb]"))


def test_trackers_that_were_opened_before_one_refuses_are_closed(
    tmp_path, experiment, wandb, mlflow
):
    def refuse(name):
        raise ConnectionError("no server")

    mlflow.get_experiment_by_name = refuse
    with refused("train.loggers") as caught:
        Summaries(tmp_path, from_step=0, experiment=experiment("train.loggers=[wandb, mlflow]"))
    assert wandb.codes == [1]
    assert "tracking.json" not in caught.value.fix


def test_the_file_to_delete_is_named_where_a_tracker_has_lost_the_run(tmp_path, experiment, mlflow):
    def refuse(run, status):
        raise LookupError(f"{run} not found")

    settings = experiment("train.loggers=[mlflow]")
    report_all(tmp_path, settings)
    mlflow.update_run = refuse
    with refused("train.loggers", 1, tmp_path):
        report_all(tmp_path, settings, 1)
    (tmp_path / "tracking.json").unlink()
    report_all(tmp_path, settings, 1)
    assert mlflow.runs == 2


def test_a_new_folder_is_free_again_after_a_refused_login(tmp_path, experiment, wandb, monkeypatch):
    def refuse(**options):
        raise ValueError("no API key")

    wandb.init = refuse
    program = SimpleNamespace(
        put_state=lambda state: state, put_teacher=lambda teacher: (), trainable=frozenset()
    )
    monkeypatch.setattr(loop, "train_programs", lambda *_: [program])
    monkeypatch.setattr(loop, "compile_step", lambda program: None)
    monkeypatch.setattr(loop, "start_run", lambda *_: SimpleNamespace(state=None))
    # A notebook keeps the error, and what its frames hold.
    with refused("train.loggers", "API") as kept:
        train(experiment("train.loggers=[wandb]", evaluated=False), tmp_path / "model")
    DirectoryLock(tmp_path / "model").release()
    assert kept.tb is not None


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_reported_first(tmp_path, experiment, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(loop, "open_data", lambda experiment: pytest.fail("it is too late"))
    with refused(None, name):
        train(experiment(f"train.loggers=[tensorboard, {name}]"), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# ---- The history that early stopping, the best checkpoint and the report are read from -----------


def steps_of(directory):
    return [json.loads(line)["step"] for line in (directory / HISTORY).read_text().splitlines()]


def events_of(directory):
    (event_file,) = (directory / "tensorboard").iterdir()
    return [Event.FromString(payload) for payload in read_records(event_file)]


def test_a_resumed_run_cuts_the_history_back_to_its_checkpoint(tmp_path):
    with closing(Summaries(tmp_path, from_step=0)) as summaries:
        for step in (10, 20, 30):
            summaries.metrics(step, {"loss": 1.0})
    with closing(Summaries(tmp_path, from_step=20)):
        pass
    assert steps_of(tmp_path) == [10, 20]


def test_an_incomplete_last_line_is_ignored(tmp_path):
    (tmp_path / HISTORY).write_text('{"step": 10, "loss": 1.0}\n{"step": 20, "lo')
    with closing(Summaries(tmp_path, from_step=20)) as summaries:
        summaries.metrics(30, {"loss": 0.5})
    assert steps_of(tmp_path) == [10, 30]


def test_a_damaged_line_does_not_end_a_resumed_run(tmp_path, capsys):
    sound = [b'{"step": %d, "loss": 1.0}\n' % step for step in (10, 20)]
    (tmp_path / HISTORY).write_bytes(sound[0] + b'{"step": 15, "l\xffss": 1.0}\n' + sound[1])
    with closing(Summaries(tmp_path, from_step=20)) as summaries:
        summaries.metrics(30, {"loss": 0.5})
    assert steps_of(tmp_path) == [10, 20, 30]
    # Once: the file is mended.
    assert capsys.readouterr().err.count(f"{tmp_path / HISTORY}:2: damaged") == 1


def test_a_resumed_run_hides_the_events_after_its_checkpoint_and_not_its_own(tmp_path):
    with closing(Summaries(tmp_path, from_step=20)):
        pass
    # TensorBoard hides entries of older files from the step of this mark on.
    marks = [event for event in events_of(tmp_path) if event.HasField("session_log")]
    assert [event.step for event in marks] == [21]


def test_evaluations_come_back_in_order(tmp_path):
    with closing(Summaries(tmp_path, from_step=0)) as summaries:
        summaries.evaluation(5, {"AP": 0.1, "APs": None}, {})
        summaries.metrics(6, {"loss": 1.0})
        summaries.evaluation(10, {"AP": 0.2, "APs": None}, {})
        assert summaries.evaluations() == (
            (5, {"AP": 0.1, "APs": None}),
            (10, {"AP": 0.2, "APs": None}),
        )


def test_scores_are_set_aside_and_metrics_stay(tmp_path):
    with closing(Summaries(tmp_path, from_step=0)) as summaries:
        summaries.metrics(4, {"loss": 1.0})
        summaries.evaluation(5, {"AP": 0.1}, {})
        aside = summaries.set_evaluations_aside()
        summaries.evaluation(6, {"AP": 0.2}, {})
        assert summaries.evaluations() == ((6, {"AP": 0.2}),)
    assert steps_of(tmp_path) == [4, 6]
    assert aside.name == "metrics-until-5.jsonl"
    assert read_history(aside).evaluations == ((5, {"AP": 0.1}),)


def test_tensorboard_has_the_names_that_the_original_gives_scores_and_metrics(tmp_path):
    named = {"DetectionBoxes_Precision/mAP@.50IOU": 0.25, "DetectionBoxes_Recall/AR@1": None}
    with closing(Summaries(tmp_path, from_step=0)) as summaries:
        summaries.evaluation(7, {"AP50": 0.25}, named)
        summaries.metrics(8, {"loss": 1.0, "learning_rate": 0.5})
    values = [(event.step, value) for event in events_of(tmp_path) for value in event.summary.value]
    # A score without a value has no point.
    assert [(step, value.tag, value.simple_value) for step, value in values] == [
        (7, "evaluation/AP50", 0.25),  # as in the log and the report
        (7, "DetectionBoxes_Precision/mAP@.50IOU", 0.25),
        (8, "Loss/total_loss", 1.0),
        (8, "learning_rate", 0.5),
    ]


def test_a_picture_comes_back_from_its_event(tmp_path):
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    with closing(Summaries(tmp_path, from_step=0)) as summaries:
        summaries.image(4, "train_input_images", picture)
    event = events_of(tmp_path)[-1]
    (value,) = event.summary.value
    assert (event.step, value.tag) == (4, "train_input_images")
    assert (value.image.height, value.image.width, value.image.colorspace) == (2, 3, 3)
    decoded = np.asarray(Image.open(io.BytesIO(value.image.encoded_image_string)))
    np.testing.assert_array_equal(decoded, picture)


def test_events_are_the_bytes_that_tensorboard_writes(tmp_path):
    picture = np.zeros((2, 300, 3), np.uint8)
    with closing(EventFile(tmp_path, purge_step=2**40)) as events:
        for value in (0.0, -1.5, float("nan"), 1e39):
            events.scalar("Loss/total_l\u00f6ss", value, 0)
        events.image("picture", picture, 1)
    (file,) = tmp_path.iterdir()
    payloads = read_records(file)
    encoded = Event.FromString(payloads[-1]).summary.value[0].image.encoded_image_string
    image = SummaryProto.Image(height=2, width=300, colorspace=3, encoded_image_string=encoded)
    expected = [
        Event(file_version="brain.Event:2"),
        Event(step=2**40, session_log=SessionLog(status=SessionLog.START)),
        *(
            Event(summary=SummaryProto(value=[{"tag": "Loss/total_l\u00f6ss", "simple_value": v}]))
            for v in (0.0, -1.5, float("nan"), float("inf"))
        ),
        Event(step=1, summary=SummaryProto(value=[{"tag": "picture", "image": image}])),
    ]
    for payload, event in zip(payloads, expected, strict=True):
        event.wall_time = Event.FromString(payload).wall_time
        assert payload == event.SerializeToString(deterministic=True)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a disk without room")
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    full = Path("/dev/full")
    monkeypatch.setattr("stillbox.training.summaries.append_file", lambda path: full.open("ab"))
    with (
        closing(Summaries(tmp_path, from_step=0)) as summaries,
        pytest.raises(OSError, match="No space left on device") as caught,
    ):
        summaries.metrics(1, {"loss": 1.0})
    assert caught.value.filename == str(tmp_path / HISTORY)


def test_a_history_on_a_disk_that_does_not_answer_is_named(tmp_path, monkeypatch):
    said, told, append = [], threading.Event(), Summaries._append

    def say(line):
        said.append(line)
        told.set()

    def append_late(self, line):
        assert told.wait(30)
        append(self, line)

    reporter = partial(StallReporter, 0.01, say)
    monkeypatch.setattr("stillbox.training.summaries.StallReporter", reporter)
    monkeypatch.setattr(Summaries, "_append", append_late)
    with Summaries(tmp_path, from_step=0) as summaries:
        summaries.metrics(1, {"loss": 1.0})
    assert f"still waiting after 0 s: {tmp_path / HISTORY}, and the loggers of the run" in said
    assert steps_of(tmp_path) == [1]
