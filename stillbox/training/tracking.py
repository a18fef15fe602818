"""Experiment trackers: Weights & Biases and MLflow.

Training goes on without a tracker that fails: all it is told is in the model directory too.
"""

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from stillbox.checkpoints.files import MAX_JSON_BYTES, replace_durably
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.values import Plain, to_plain
from stillbox.experiment.yaml_config import to_yaml
from stillbox.extras import import_extra
from stillbox.records.files import refuse_links
from stillbox.training.loggers import Logger, TensorBoard, as_evaluation
from stillbox.untrusted import read_untrusted

_PROJECT = "stillbox"
_RUNS = "tracking.json"
# MLflow's limits: parameters of a request, characters of a value.
_MLFLOW_PARAMETERS, _MLFLOW_CHARACTERS = 100, 500


def require_loggers(train: schema.Training) -> None:
    """Imports the packages of the run's loggers."""
    for name in train.loggers:
        if name in _TRACKERS:
            import_extra(name, name)


def open_loggers(
    directory: Path, experiment: schema.Experiment | None, from_step: int
) -> tuple[Logger, ...]:
    """Opens the loggers of `train.loggers`; a resumed run continues with its own.

    Without an experiment TensorBoard alone is opened.
    """
    names = ("tensorboard",) if experiment is None else experiment.train.loggers
    opened: list[Logger] = []
    for name in names:
        if name == "tensorboard":
            opened.append(TensorBoard(directory, from_step))
        elif experiment is not None:
            opened.append(_open_tracker(name, directory, experiment))
    return tuple(opened)


def _open_tracker(name: str, directory: Path, experiment: schema.Experiment) -> Logger:
    runs = _read_runs(directory)
    refuse_links(directory / name, below=directory)
    try:
        tracker, run = _TRACKERS[name](directory, experiment, runs.get(name))
    except Exception as error:
        raise UserError(
            f"{name} does not take the run: {str(error) or type(error).__name__}",
            where="train.loggers",
            fix=_FIXES[name],
        ) from error
    if runs.get(name) != run:
        replace_durably(directory / _RUNS, json.dumps(runs | {name: run}))
    return _FaultTolerantLogger(tracker, name)


def _read_runs(directory: Path) -> dict[str, str]:
    """Returns the run's id in each tracker that it has been in."""
    path = directory / _RUNS
    if not path.exists():
        return {}
    content = read_untrusted(path, most=MAX_JSON_BYTES, inside=directory)
    try:
        runs = json.loads(content)
        return {name: str(run) for name, run in runs.items()}
    except (ValueError, RecursionError, AttributeError) as error:
        raise UserError(
            "the file is damaged",
            where=str(path),
            fix="delete it: the trackers begin a new run then",
        ) from error


class _FaultTolerantLogger:
    """A tracker that receives everything until it fails once, which is reported."""

    def __init__(self, tracker: Logger, name: str) -> None:
        self._tracker: Logger | None = tracker
        self._name = name

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._try(lambda tracker: tracker.metrics(values, step))

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        self._try(lambda tracker: tracker.evaluation(scores, original, step))

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        self._try(lambda tracker: tracker.image(name, image, step))

    def close(self, *, failed: bool) -> None:
        self._try(lambda tracker: tracker.close(failed=failed))

    def _try(self, tell: Callable[[Logger], None]) -> None:
        if self._tracker is None:
            return
        try:
            tell(self._tracker)
        except Exception as error:
            self._tracker = None
            what = f"{self._name} has failed and gets no more of this run: {error}"
            print(f"warning: {what}", file=sys.stderr, flush=True)


class _WandbApi(Protocol):
    """The methods of `wandb.Run` that are called."""

    def define_metric(self, name: str, *, step_metric: str) -> object: ...
    def log(self, data: dict[str, object]) -> None: ...
    def finish(self, exit_code: int) -> None: ...


class _WandbRun:
    """A run of Weights & Biases. Its files are in `wandb` of the model directory."""

    def __init__(self, run: _WandbApi, image_type: Callable[[np.ndarray], object]) -> None:
        self._run, self._image_type = run, image_type
        # W&B's own steps only rise; those of a resumed run go back to its checkpoint.
        run.define_metric("*", step_metric="step")

    @classmethod
    def open(
        cls, directory: Path, experiment: schema.Experiment, run: str | None
    ) -> tuple["_WandbRun", str]:
        """Starts a run, or goes on with the one of this id; returns it with its id."""
        wandb = import_extra("wandb", "wandb")
        run = os.environ.get("WANDB_RUN_ID") or run or uuid.uuid4().hex
        opened = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=os.environ.get("WANDB_NAME", directory.resolve().name),
            id=run,
            resume="allow",
            dir=str(directory),
            config=to_plain(experiment),
        )
        return cls(opened, wandb.Image), run

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({"step": step, **values})

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        self._run.log({"step": step, **as_evaluation(scores)})

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        self._run.log({"step": step, name: self._image_type(image)})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _MlflowApi(Protocol):
    """The methods of `mlflow.MlflowClient` that are called once a run is open."""

    def log_batch(self, run_id: str, metrics: Sequence[object]) -> object: ...
    def log_image(self, run_id: str, image: np.ndarray, *, key: str, step: int) -> None: ...
    def set_terminated(self, run_id: str, status: str) -> None: ...


class _MlflowRun:
    def __init__(
        self,
        client: _MlflowApi,
        metric_type: Callable[[str, float, int, int], object],
        run: str,
    ) -> None:
        self._client, self._metric_type, self._run = client, metric_type, run

    @classmethod
    def open(
        cls, directory: Path, experiment: schema.Experiment, run: str | None
    ) -> tuple["_MlflowRun", str]:
        """Starts a run, or goes on with the one of this id; returns it with its id."""
        client = import_extra("mlflow", "mlflow").MlflowClient()
        entities = import_extra("mlflow.entities", "mlflow")
        if run is not None:
            client.update_run(run, status="RUNNING")
            return cls(client, entities.Metric, run), run
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        known = client.get_experiment_by_name(name)
        group = known.experiment_id if known else client.create_experiment(name)
        run = str(client.create_run(group, run_name=directory.resolve().name).info.run_id)
        parameters = [
            entities.Param(path, str(value)[:_MLFLOW_CHARACTERS])
            for path, value in _leaves(to_plain(experiment))
        ]
        for start in range(0, len(parameters), _MLFLOW_PARAMETERS):
            client.log_batch(run, params=parameters[start : start + _MLFLOW_PARAMETERS])
        client.log_text(run, to_yaml(experiment), "experiment.yaml")
        return cls(client, entities.Metric, run), run

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        now = time.time_ns() // 1_000_000
        metrics = [self._metric_type(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        self.metrics(as_evaluation(scores), step)

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        self._client.log_image(self._run, image, key=name, step=step)

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


_TRACKERS: dict[str, Callable[[Path, schema.Experiment, str | None], tuple[Logger, str]]] = {
    "wandb": _WandbRun.open,
    "mlflow": _MlflowRun.open,
}
_FIXES = {
    "wandb": "wandb login, or WANDB_MODE=offline",
    "mlflow": "set MLFLOW_TRACKING_URI to a server that answers, or to a folder",
}


def _leaves(plain: Plain, path: str = "") -> Iterator[tuple[str, Plain]]:
    """Yields the path and the value of each field; a list is one value."""
    if not isinstance(plain, dict):
        yield path, plain
        return
    for name, item in plain.items():
        yield from _leaves(item, f"{path}.{name}" if path else name)
