"""Trackers that do not answer, are slow or fail: training does not wait for them."""

import threading
import time

import numpy as np
import pytest

from stillbox.evaluation.history import HISTORY
from stillbox.training import logger as logger_module
from stillbox.training.logger import QueuedLogger
from stillbox.training.summaries import Summaries
from tests.training.test_tracking import mlflow, wandb  # noqa: F401

PICTURE = np.zeros((2, 3, 3), np.uint8)


class Tracker:
    def __init__(self, *, opened=True):
        self.open, self.told = threading.Event(), []
        if opened:
            self.open.set()

    def metrics(self, values, step):
        assert self.open.wait(30)
        self.told.append(step)

    def evaluation(self, scores, original, step):
        self.metrics(scores, step)

    def image(self, name, image, step):
        self.told.append(name)

    def close(self, *, failed):
        self.told.append("failed" if failed else "ended")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(logger_module, "FLUSH_SECONDS", 0.2)


def test_everything_arrives_in_order_before_the_end(capsys):
    tracker = Tracker()
    logger = QueuedLogger(tracker, "wandb")
    for step in range(100):
        logger.metrics({"loss": 1.0}, step)
    logger.image("a", PICTURE, 100)
    logger.evaluation({"AP": 0.5}, {}, 101)
    logger.close(failed=True)
    assert tracker.told == [*range(100), "a", 101, "failed"]
    assert capsys.readouterr().err == ""


def test_a_tracker_that_does_not_answer_holds_nothing_up_and_drops_are_said_once(short, capsys):
    tracker = Tracker(opened=False)
    logger = QueuedLogger(tracker, "mlflow")
    began = time.monotonic()
    for step in range(5000):
        logger.metrics({"loss": 1.0}, step)
        logger.image("a", PICTURE, step)
    logger.close(failed=False)
    assert time.monotonic() - began < 2.0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "mlflow is slower than this run" in said[0]
    assert "mlflow has not taken all of this run in 0.2 s" in said[1]
    tracker.open.set()


def test_a_tracker_that_is_slow_for_a_moment_loses_nothing():
    tracker = Tracker(opened=False)
    logger = QueuedLogger(tracker, "mlflow")
    for step in range(500):
        logger.metrics({"loss": 1.0}, step)
    threading.Timer(0.2, tracker.open.set).start()
    logger.close(failed=False)
    assert tracker.told == [*range(500), "ended"]


def test_a_failure_ends_the_tracker_and_not_the_queue(capsys):
    tracker = Tracker()
    tracker.evaluation = lambda *_: 1 / 0
    logger = QueuedLogger(tracker, "wandb")
    logger.metrics({}, 1)
    logger.evaluation({}, {}, 2)
    for step in range(3, 3000):
        logger.metrics({}, step)
    logger.close(failed=False)
    assert "ended" not in tracker.told
    assert capsys.readouterr().err.count("warning: wandb has failed") == 1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_run_ends_although_its_tracker_stands_still(
    tmp_path, experiment, request, monkeypatch, short, name
):
    module, stopped = request.getfixturevalue(name), threading.Event()
    monkeypatch.setattr(module, "log", lambda *_: stopped.wait(30), raising=False)
    settings = experiment(f"train.loggers=[{name}]")
    began = time.monotonic()
    with Summaries(tmp_path, from_step=0, experiment=settings) as summaries:
        monkeypatch.setattr(module, "log_batch", lambda *_, **__: stopped.wait(30), raising=False)
        for step in range(1, 50):
            summaries.metrics(step, {"loss": 1.5})
    assert time.monotonic() - began < 5.0
    assert len((tmp_path / HISTORY).read_text().splitlines()) == 49
    stopped.set()
