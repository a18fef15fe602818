"""A worker of a training run on Ray: it joins the job, trains, and reports to Ray."""

import importlib.util
import json
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import jax

from stillbox.checkpoints.remote_directory import ModelPlace, model_place
from stillbox.devices.announcing import say_aside
from stillbox.devices.job import join_job, only_first_prints
from stillbox.devices.launcher import FIRST_PORT, PORTS, ProcessInfo
from stillbox.devices.process import silence_libtpu
from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.yaml_config import CHECKPOINTS, from_yaml, place_paths
from stillbox.extras import install_command
from stillbox.references import Parameter
from stillbox.scaling.ray_cluster import enter_driver

_REPORT_SECONDS = 5.0
# What Ray's first worker announces to the others.
_REPORT, _END = "report", "end"
# Ray's labels of a machine of a slice.
_SLICE, _MACHINE = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"


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
    platform: str
    """JAX's name of the devices."""
    per_slice: int
    """Workers of a slice of TPUs; 1 without slices."""
    folder: Path
    """Where the command runs, for relative paths."""

    def run(self) -> object:
        """Joins the job and trains; waits where the batch cannot be divided over all workers."""
        import ray.train
        from ray.train.collective import broadcast_from_rank_zero

        silence_libtpu()
        prepare_process()
        enter_driver(self.folder, self.imports)
        context = ray.train.get_context()
        rank, there = context.get_world_rank(), context.get_world_size()
        count = fitting_workers(from_yaml(self.experiment), self.devices, there, self.per_slice)
        address = _first_address(self.per_slice) if rank == 0 else ""
        info = _process(rank, count, broadcast_from_rank_zero(address), self.per_slice)
        if rank == 0 and there > count:
            say_aside(f"{count} of {there} workers train: they divide the batch evenly")
        first = info is not None and info.index == 0
        with (
            model_place(self.directory, step="latest", writes=first) as place,
            Report(place, first=first, leads=rank == 0) as report,
        ):
            if info is None:
                return None
            if self.platform == "tpu":
                _tell_slices(info, self.per_slice)
                _require_tpus()
            return self._train(info, place, report)

    def _train(self, info: ProcessInfo, place: ModelPlace, report: "Report") -> object:
        experiment = place_paths(from_yaml(self.experiment), place.folder)
        several = info.count > 1
        with only_first_prints(info) if several else nullcontext():
            if several:
                join_job(info)
            self._refuse_missing_gpus()
            ended = self.train(experiment, place, **self.arguments, loggers=[report])
            # Not after an error: the others would have to leave too.
            if several:
                jax.distributed.shutdown()
            return ended

    def _refuse_missing_gpus(self) -> None:
        if self.platform == "gpu" and jax.local_devices()[0].platform == "cpu":
            raise UserError(
                f"JAX finds no GPU on {socket.gethostname()}",
                where=Parameter("resources"),
                fix="install the extra [cuda] on every machine, or give "
                f"{Parameter('resources', 'CPU=1')}",
            )


def fitting_workers(experiment: schema.Experiment, each: int, most: int, per_slice: int = 1) -> int:
    """Returns how many of `most` workers, with `each` devices, can divide a batch evenly.

    They are a multiple of `per_slice`. 0: not even one.
    """
    sharing, train = experiment.devices.spatial_partitions, experiment.train
    for number in range(most - most % per_slice, 0, -per_slice):
        rows, rest = divmod(number * each, sharing)
        if rows and not (rest or train.batch_size % (rows * train.accumulation_steps)):
            return number
    return 0


# ---- its place in the job -----------------------------------------------------------------------


def _process(rank: int, count: int, coordinator: str, per_slice: int) -> ProcessInfo | None:
    """Returns the place of a worker in the job; None: it does not train.

    Ray numbers the slices, but not the machines of a slice, as the TPUs do. JAX numbers its
    processes as the TPUs do, and its first process has to be the one at `coordinator`.
    """
    if rank >= count:
        return None
    index, machine = rank, rank % per_slice
    if per_slice > 1:
        index = rank - machine + _machine_of_slice(machine)
    return ProcessInfo(index, count, coordinator, launcher="Ray")


def _machine_of_slice(default: int) -> int:
    import ray

    return int(ray.get_runtime_context().get_node_labels().get(_MACHINE, default))


def _first_address(per_slice: int) -> str:
    """Returns a port of the machine with the job's first process, from Ray's first worker.

    That is this machine, where the port is free now, or another one of the same slice.
    """
    import ray

    if per_slice > 1 and _machine_of_slice(0) != 0:
        name = ray.get_runtime_context().get_node_labels().get(_SLICE)
        for node in ray.nodes():
            labels = node["Labels"]
            if node["Alive"] and labels.get(_SLICE) == name and labels.get(_MACHINE) == "0":
                return f"{node['NodeManagerAddress']}:{FIRST_PORT + secrets.randbelow(PORTS)}"
    with socket.socket() as listener:
        listener.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{listener.getsockname()[1]}"


def _require_tpus() -> None:
    """Lets JAX raise an error where the TPUs do not start, and not take the processor instead.

    They may still belong to a process of the group before, and Ray tries again. `JAX_PLATFORMS`
    takes precedence.

    Raises:
        UserError: libtpu is not installed.
    """
    if os.environ.get("JAX_PLATFORMS"):
        return
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"libtpu is not installed on {socket.gethostname()}",
            where=Parameter("slice"),
            fix=f"install the extra [tpu] on every machine, {install_command('tpu')}",
        )
    jax.config.update("jax_platforms", "tpu,cpu")


def _tell_slices(info: ProcessInfo, per_slice: int) -> None:
    """Sets the variables by which the TPUs of several slices find each other.

    A machine may still have the variables of a former group of slices.
    """
    from ray.util.tpu import get_tpu_coordinator_env_vars

    number = info.count // per_slice
    host = info.coordinator.rpartition(":")[0]
    for name, value in get_tpu_coordinator_env_vars(
        coordinator_address=host, num_slices=number, slice_id=info.index // per_slice
    ).items():
        if number > 1:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


class Report:
    """A logger that reports to Ray: the newest metrics and checkpoints, every few seconds.

    Ray has all workers report together, and each report waits until Ray's controller looks for it,
    every two seconds. A thread of each worker reports, even if the worker does not train. Without
    an error, leaving the context reports what is left, once all workers leave theirs.

    Args:
        place: the model directory.
        first: this is the first process of the job, which has the metrics. Ray keeps the metrics of
            its own first worker. On slices the two may differ: then only checkpoints are kept.
        leads: this is Ray's first worker, which the others follow.
    """

    def __init__(self, place: ModelPlace, *, first: bool, leads: bool) -> None:
        self._place, self._first = place, first
        self._step = place.newest_step() if first else 0
        self._metrics: dict[str, float] = {}
        self._lock, self._ending, self._failed = threading.Lock(), threading.Event(), False
        run = self._lead if leads else self._follow
        self._thread = threading.Thread(target=run, name="stillbox-report", daemon=True)

    def __enter__(self) -> "Report":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = kind is not None
        self._ending.set()
        # Ray ends the others after an error; their threads may wait for this worker until then.
        if not self._failed:
            self._thread.join()

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

    def _lead(self) -> None:
        from ray.train.collective import broadcast_from_rank_zero

        ending = False
        while not ending:
            ending = self._ending.wait(_REPORT_SECONDS)
            if self._failed:
                return
            if not self._first or self._metrics or self._newest() > self._step:
                broadcast_from_rank_zero(_REPORT)
                self._send()
        broadcast_from_rank_zero(_END)

    def _follow(self) -> None:
        from ray.train.collective import broadcast_from_rank_zero

        while broadcast_from_rank_zero("") == _REPORT:
            self._send()

    def _newest(self) -> int:
        # The others wait for this thread: a storage that fails for a moment must not end it.
        with suppress(UserError, OSError):
            return self._place.newest_step()
        return self._step

    def _send(self) -> None:
        """Reports metrics, with a folder that has the path of a new checkpoint."""
        from ray.train import Checkpoint, report

        if not self._first:
            report({})
            return
        with self._lock:
            metrics, self._metrics = self._metrics, {}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint, newest = None, self._newest()
            if newest > self._step:
                self._step = newest
                path = f"{self._place}/{CHECKPOINTS}/{newest}"
                text = json.dumps({"step": newest, "path": path})
                Path(folder, "checkpoint.json").write_text(text, encoding="ascii")
                checkpoint = Checkpoint.from_directory(folder)
            report({"step": newest, **metrics}, checkpoint=checkpoint)
