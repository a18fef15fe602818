"""Receivers of a run's metrics: TensorBoard's event files, Weights & Biases and MLflow.

An event file is a TFRecord file of `Event` messages. It is written without a library: the
library's writer thread would end on a full disk without ending the run. Source:
tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto.
"""

import io
import json
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from stillbox.checkpoints.files import MAX_JSON_BYTES, blamed, replace_durably
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.values import Plain, to_plain
from stillbox.experiment.yaml_config import to_yaml
from stillbox.extras import import_extra
from stillbox.records.files import append_file, make_folder, refuse_links
from stillbox.records.tfrecord import frame
from stillbox.records.wire import bytes_field, varint_field
from stillbox.training.logger import Logger, QueuedLogger
from stillbox.untrusted import read_untrusted

_FLUSH_SECONDS = 30.0
# Event: double wall_time = 1, int64 step = 2, and one of these.
_FILE_VERSION, _SUMMARY, _SESSION_LOG = 3, 5, 7
_WALL_TIME = struct.Struct("<Bd")


class EventFile:
    """One more event file in a folder; TensorBoard reads all of them as one run.

    Args:
        purge_step: TensorBoard hides entries of older files from this step on.

    Raises:
        OSError: the disk is full; every method raises it, with the file's name.
    """

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        with blamed(self._path):
            self._file = append_file(self._path)
        self._flushed = time.monotonic()
        self._write(event(0, bytes_field(_FILE_VERSION, b"brain.Event:2")))
        # SessionLog: status = 1, of which 1 is START.
        self._write(event(purge_step, bytes_field(_SESSION_LOG, varint_field(1, 1))))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Records a number."""
        self._add(scalar_summary(name, value), step)

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Records a picture, `[H, W, 3]` uint8."""
        self._add(image_summary(name, image), step)

    def flush(self) -> None:
        """Writes buffered events to the file."""
        self._flushed = time.monotonic()
        with blamed(self._path):
            self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        with blamed(self._path):
            self._file.close()

    def _add(self, summary: bytes, step: int) -> None:
        self._write(event(step, bytes_field(_SUMMARY, summary)))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def _write(self, message: bytes) -> None:
        with blamed(self._path):
            self._file.write(frame(message))


def event(step: int, content: bytes) -> bytes:
    """Returns an `Event` of the present time with its one field of content."""
    return _WALL_TIME.pack(1 << 3 | 1, time.time()) + varint_field(2, step) + content


def scalar_summary(name: str, value: float) -> bytes:
    """Returns a `Summary` of a number: `Value { tag = 1, float simple_value = 2 }`."""
    with np.errstate(over="ignore"):  # the loss of a diverging run may exceed float32
        number = bytes([2 << 3 | 5]) + np.array(value, "<f4").tobytes()
    return bytes_field(1, bytes_field(1, name.encode()) + number)


def image_summary(name: str, image: np.ndarray) -> bytes:
    """Returns a `Summary` of a picture `[H, W, 3]` uint8: `Value { tag = 1, Image image = 4 }`."""
    encoded = io.BytesIO()
    Image.fromarray(image).save(encoded, "PNG")
    # Image: height = 1, width = 2, colorspace = 3 (channels), encoded_image_string = 4.
    sizes = b"".join(varint_field(number, size) for number, size in enumerate(image.shape, 1))
    picture = sizes + bytes_field(4, encoded.getvalue())
    return bytes_field(1, bytes_field(1, name.encode()) + bytes_field(4, picture))


class TensorBoard:
    """TensorBoard's event files, in `tensorboard` of a model directory.

    Values that the Object Detection API logs too have its names, so that runs can be compared.

    Args:
        from_step: events of later steps, which an aborted run wrote, are hidden.
    """

    def __init__(self, directory: Path, from_step: int) -> None:
        folder = make_folder(directory / "tensorboard", below=directory)
        self._events = EventFile(folder, purge_step=from_step + 1)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Records the metrics of a step."""
        for name, value in values.items():
            self._events.scalar(_EVENT_NAMES.get(name, f"train/{name}"), value, step)

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        """Records scores by both names."""
        for name, value in (as_evaluation(scores) | dict(original)).items():
            self._events.scalar(name, value, step)
        self._events.flush()

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Records a picture."""
        self._events.image(name, image, step)

    def close(self, *, failed: bool) -> None:
        """Flushes the events."""
        self._events.close()


_EVENT_NAMES = {
    "loss": "Loss/total_loss",
    "classification_loss": "Loss/classification_loss",
    "localization_loss": "Loss/localization_loss",
    "regularization_loss": "Loss/regularization_loss",
    "learning_rate": "learning_rate",
}


def as_evaluation(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns scores under names that no metric of training has: `evaluation/AP`."""
    return {f"evaluation/{name}": value for name, value in scores.items()}


_PROJECT = "stillbox"
_RUNS = "tracking.json"
# MLflow's limits: parameters of a request, characters of a value.
_MLFLOW_PARAMETERS, _MLFLOW_CHARACTERS = 100, 500


def require_loggers(train: schema.Training) -> None:
    """Imports the packages of the run's loggers.

    Raises:
        UserError: one is not installed.
    """
    for name in train.loggers:
        if name in _TRACKERS:
            import_extra(name, name)


def open_loggers(
    directory: Path, experiment: schema.Experiment | None, from_step: int
) -> tuple[Logger, ...]:
    """Opens the loggers of `train.loggers`; a resumed run continues with its own.

    Without an experiment TensorBoard alone is opened.

    Raises:
        UserError: a tracker refuses the run.
    """
    names = ("tensorboard",) if experiment is None else experiment.train.loggers
    opened: list[Logger] = []
    try:
        for name in names:
            if name == "tensorboard":
                opened.append(TensorBoard(directory, from_step))
            elif experiment is not None:
                opened.append(_open_tracker(name, directory, experiment))
    except BaseException:
        for logger in opened:
            logger.close(failed=True)
        raise
    return tuple(opened)


def _open_tracker(name: str, directory: Path, experiment: schema.Experiment) -> Logger:
    runs = _read_runs(directory)
    for variable, seconds in _TIMEOUTS.items():
        os.environ.setdefault(variable, seconds)
    refuse_links(directory / name, below=directory)
    try:
        tracker, run = _TRACKERS[name](directory, experiment, runs.get(name))
    except Exception as error:
        problem = f"{name} does not take the run: {str(error) or type(error).__name__}"
        known = f"; if its run is gone there, delete {directory / _RUNS}: a new one is begun then"
        fix = _FIXES[name] + known * (name in runs)
        raise UserError(problem, where="train.loggers", fix=fix) from error
    if runs.get(name) != run:
        replace_durably(directory / _RUNS, json.dumps(runs | {name: run}))
    return QueuedLogger(tracker, name)


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
        fix = "delete it: the trackers begin a new run then"
        raise UserError("the file is damaged", where=str(path), fix=fix) from error


class _WandbApi(Protocol):
    """The methods of `wandb.Run` that are called."""

    def define_metric(self, name: str, *, step_metric: str) -> object: ...
    def log(self, data: dict[str, object]) -> None: ...
    def finish(self, exit_code: int) -> None: ...


class _WandbRun:
    """A run of Weights & Biases. Its files are in `wandb` of the model directory."""

    def __init__(self, run: _WandbApi, image_type: Callable[[np.ndarray], object]) -> None:
        self._run, self._image_type = run, image_type
        # W&B's own steps only rise; the steps of a resumed run go back to its checkpoint.
        run.define_metric("*", step_metric="step")

    @classmethod
    def open(
        cls, directory: Path, experiment: schema.Experiment, run: str | None
    ) -> tuple["_WandbRun", str]:
        """Starts a run, or goes on with the run of this id; returns the run and its id."""
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
        self, client: _MlflowApi, metric_type: Callable[[str, float, int, int], object], run: str
    ) -> None:
        self._client, self._metric_type, self._run = client, metric_type, run

    @classmethod
    def open(
        cls, directory: Path, experiment: schema.Experiment, run: str | None
    ) -> tuple["_MlflowRun", str]:
        """Starts a run, or goes on with the run of this id; returns the run and its id."""
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
# Without them a server that is away is asked for minutes.
_TIMEOUTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "WANDB_INIT_TIMEOUT": "30",
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
