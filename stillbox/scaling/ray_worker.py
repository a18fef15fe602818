"""A worker of a training run on Ray: it joins the job, trains, and reports to Ray."""

import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import jax

from stillbox.checkpoints.remote_directory import ModelPlace, model_place
from stillbox.devices.announcing import say_aside
from stillbox.devices.job import joined
from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.process import silence_libtpu
from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.imports import import_parts
from stillbox.experiment.yaml_config import CHECKPOINTS, from_yaml, place_paths

_REPORT_SECONDS = 5.0
# What the first worker announces to the others.
_REPORT, _END = "report", "end"


@dataclass(frozen=True)
class Work:
    """What every worker does."""

    train: Callable[..., object]
    """The training loop; it takes `loggers`."""
    experiment: str
    """All of it, as YAML, as it is stored in the model directory."""
    imports: tuple[str, ...]
    """Arguments of `--import`."""
    directory: str
    """The model directory, or its URL."""
    arguments: Mapping[str, object]
    """More of `train`."""
    devices: int
    """Devices of a worker."""
    on_gpus: bool
    folder: Path
    """Where the command runs, for relative paths."""

    def run(self) -> object:
        """Joins the job and trains; waits where the batch cannot be divided over all workers."""
        import ray.train
        from ray.train.collective import broadcast_from_rank_zero

        # Ray starts a worker in a folder of its own.
        if self.folder.is_dir():
            os.chdir(self.folder)
        silence_libtpu()
        prepare_process()
        import_parts(self.imports)
        context = ray.train.get_context()
        rank, there = context.get_world_rank(), context.get_world_size()
        count = fitting_workers(from_yaml(self.experiment), self.devices, there)
        coordinator = broadcast_from_rank_zero(_free_address() if rank == 0 else "")
        if rank == 0 and there > count:
            say_aside(f"{count} of {there} workers train: they divide the batch evenly")
        with model_place(self.directory, step="latest", writes=rank == 0) as place:
            report, ended = Report(place, first=rank == 0), None
            if rank < count:
                info = ProcessInfo(rank, count, coordinator, launcher="Ray")
                ended = self._train(info, place, report)
            report.end()
        return ended

    def _train(self, info: ProcessInfo, place: ModelPlace, report: "Report") -> object:
        experiment = place_paths(from_yaml(self.experiment), place.folder)
        with joined(info) if info.count > 1 else nullcontext():
            if self.on_gpus:
                _refuse_missing_gpus()
            return self.train(experiment, place, **self.arguments, loggers=[report])


def fitting_workers(experiment: schema.Experiment, each: int, most: int) -> int:
    """Returns how many of `most` workers, with `each` devices, can divide a batch evenly.

    0: not even one.
    """
    sharing, train = experiment.devices.spatial_partitions, experiment.train
    for number in range(most, 0, -1):
        rows, rest = divmod(number * each, sharing)
        if rows and not (rest or train.batch_size % (rows * train.accumulation_steps)):
            return number
    return 0


def _free_address() -> str:
    """Returns a port of this machine that is free now."""
    import ray

    with socket.socket() as one:
        one.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{one.getsockname()[1]}"


def _refuse_missing_gpus() -> None:
    if jax.local_devices()[0].platform == "cpu":
        raise UserError(
            f"JAX finds no GPU on {socket.gethostname()}",
            where="--resources",
            fix="install the extra [cuda] on every machine, or give --resources CPU=1",
        )


class Report:
    """A logger that reports to Ray: the newest metrics and checkpoints, every few seconds.

    Ray has all workers report together, and each report waits until its controller looks for it,
    every two seconds. A thread does it, in all workers, also in those that do not train.

    Args:
        place: the model directory.
        first: this is the first worker, whose metrics are reported; the others follow it.
    """

    def __init__(self, place: ModelPlace, *, first: bool) -> None:
        self._place, self._first = place, first
        self._step = place.newest_step() if first else 0
        self._metrics: dict[str, float] = {}
        self._lock, self._ending = threading.Lock(), threading.Event()
        run = self._lead if first else self._follow
        self._thread = threading.Thread(target=run, name="stillbox-report", daemon=True)
        self._thread.start()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Reports the metrics of a step, if no later ones come soon."""
        with self._lock:
            self._metrics |= {**values, "step": step}

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        """Reports scores, with the next metrics."""
        self.metrics({f"evaluation/{name}": score for name, score in scores.items()}, step)

    def image(self, name: str, image: object, step: int) -> None:
        """Pictures are not reported."""

    def close(self, *, failed: bool) -> None:
        """Does nothing: a checkpoint may be being written."""

    def end(self) -> None:
        """Reports what is left, once all workers call it."""
        self._ending.set()
        self._thread.join()

    def _lead(self) -> None:
        from ray.train.collective import broadcast_from_rank_zero

        ending = False
        while not ending:
            ending = self._ending.wait(_REPORT_SECONDS)
            with self._lock:
                metrics, self._metrics = self._metrics, {}
            if metrics or self._place.newest_step() > self._step:
                broadcast_from_rank_zero(_REPORT)
                self._send(metrics)
        broadcast_from_rank_zero(_END)

    def _follow(self) -> None:
        from ray.train import report
        from ray.train.collective import broadcast_from_rank_zero

        while broadcast_from_rank_zero("") == _REPORT:
            report({})

    def _send(self, metrics: dict[str, float]) -> None:
        """Reports metrics, with a folder that has the path of a new checkpoint."""
        from ray.train import Checkpoint, report

        with tempfile.TemporaryDirectory() as folder:
            checkpoint, newest = None, self._place.newest_step()
            if newest > self._step:
                self._step = newest
                path = f"{self._place}/{CHECKPOINTS}/{newest}"
                text = json.dumps({"step": newest, "path": path})
                Path(folder, "checkpoint.json").write_text(text)
                checkpoint = Checkpoint.from_directory(folder)
            report({"step": newest, **metrics}, checkpoint=checkpoint)
