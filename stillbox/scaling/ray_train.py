"""Trains on a Ray cluster with Ray Train's `JaxTrainer`.

Ray starts the workers, replaces lost ones and changes their number; every worker runs the training
loop. The state of a run is in its model directory, from which each new group of workers resumes.

`JaxTrainer` would start `jax.distributed` itself for GPUs only, and then number the GPUs of every
worker from 0 on, also of two workers on one machine. The workers therefore join by `joined`.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.devices.announcing import say_aside
from stillbox.devices.job import JoinError
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.imports import imports_of
from stillbox.experiment.run_length import depends_on_replicas
from stillbox.experiment.yaml_config import store_paths, to_yaml
from stillbox.extras import import_extra
from stillbox.printing import count_text, printable_line
from stillbox.scaling.ray_cluster import connected
from stillbox.scaling.ray_worker import Work, fitting_workers

if TYPE_CHECKING:
    from ray.train import Result

_WHERE = "--workers"
# Ray's own files of a run, in the model directory.
_FOLDER = "ray"
# Failures without a new checkpoint between them that end a run.
_MOST_FAILURES = 3
# How often Ray considers another number of workers.
_RESIZE_SECONDS = 60.0

Ended = TypeVar("Ended")


@dataclass(frozen=True)
class Workers:
    """The number of workers of a run, and the resources of each.

    Raises:
        UserError: a number or a resource cannot be had.
    """

    least: int
    most: int
    resources: Mapping[str, float] = field(default_factory=dict)
    """Amounts by Ray's names, such as `{"GPU": 8}`; empty: all GPUs of a machine, or one CPU."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError(
                f"there are no {self.least} to {self.most} workers",
                where=_WHERE,
                fix="give a number, or the least and the most, as in 2:8",
            )
        if "TPU" in self.resources:
            raise UserError(
                "workers with TPUs are not supported",
                where="--resources",
                fix="start one process on each machine of a slice, see docs/launchers/gke.md",
            )
        for name, amount in self.resources.items():
            if amount <= 0 or (name == "GPU" and amount != int(amount)):
                raise UserError(
                    f"a worker cannot have {amount:g} of {name}",
                    where="--resources",
                    fix="for example GPU=8",
                )

    @property
    def devices(self) -> int:
        """Devices of a worker: its GPUs, or its processor."""
        return int(self.resources.get("GPU", 1))

    def describe(self) -> str:
        """Returns the numbers as words."""
        number = f"{self.least} to {self.most}" if self.least != self.most else str(self.most)
        each = ", ".join(f"{name}={amount:g}" for name, amount in self.resources.items())
        return f"{number} {'worker' if self.most == 1 else 'workers'} with {each} each"


def find_workers(
    engine: str,
    workers: int | tuple[int, int] | None,
    resources: Mapping[str, float] | None,
) -> Workers | None:
    """Returns the workers of the engine `ray`; None for `local`.

    Raises:
        UserError: engine, workers and resources do not belong together.
    """
    if engine not in ("local", "ray"):
        raise UserError(f"there is no engine {engine!r}", where="--engine", fix="local or ray")
    if engine == "local":
        if workers is not None or resources:
            raise UserError(
                "--workers and --resources belong to --engine ray",
                where=_WHERE,
                fix="give --engine ray too, or leave them out",
            )
        return None
    if workers is None:
        raise UserError(
            "--engine ray needs the number of workers",
            where=_WHERE,
            fix="--workers 2, or --workers 2:8 for two to eight",
        )
    least, most = (workers, workers) if isinstance(workers, int) else workers
    return Workers(least, most, dict(resources or {}))


def train_on_ray(
    train: Callable[..., Ended],
    experiment: schema.Experiment,
    place: ModelPlace,
    workers: Workers,
    **arguments: object,
) -> Ended:
    """Trains on the cluster of `RAY_ADDRESS`, or on one that is started here.

    Every machine needs stillbox, the records and the model directory under the same paths, or URLs.

    Args:
        train: the training loop. It is called in every worker, and takes `loggers`.
        experiment: all of it.
        place: the model directory.
        workers: how many.
        arguments: more of `train`.

    Returns:
        What `train` returned in the first worker.

    Raises:
        UserError: Ray is not installed, the cluster does not answer or is too small, the workers
            do not divide the batch, or a worker raised it.
        FloatingPointError: the loss is not finite.
    """
    _refuse_uneven(experiment, workers)
    import_extra("ray.train", "ray")
    with connected(output_of_workers=True):
        import ray
        from ray._private.state import state

        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        workers = _with_resources(workers, machines)
        _refuse_uneven(experiment, workers)
        # With an autoscaler Ray starts the machines that a run waits for.
        if not state.get_max_resources_from_cluster_config():
            _refuse_shortage(workers, machines)
        experiment = _with_replicas(experiment, workers)
        say_aside(f"training on Ray: {workers.describe()}")
        work = Work(
            train=train,
            experiment=to_yaml(store_paths(experiment, place.folder)),
            imports=imports_of(experiment),
            directory=str(place) if place.remote else str(place.folder.absolute()),
            arguments=arguments,
            devices=workers.devices,
            on_gpus="GPU" in workers.resources,
            folder=Path.cwd(),
        )
        if place.remote is not None:
            # Of a folder of images, this process has made the records.
            place.remote.publish_files()
        keep = experiment.train.keep_checkpoints
        ended: Ended = _fit(work, place, workers, keep).return_value
        return ended


def _fit(work: Work, place: ModelPlace, workers: Workers, keep: int) -> "Result":
    """Runs the workers to their end.

    Raises:
        UserError: see `train_on_ray`.
    """
    from ray.train import (
        CheckpointConfig,
        ControllerError,
        FailureConfig,
        LoggingConfig,
        RunConfig,
        ScalingConfig,
    )
    from ray.train.v2.jax import JaxConfig, JaxTrainer

    # Otherwise every worker prints each of its reports, and everything twice.
    for name in ("WORKER_STRUCTURED_LOGGING", "PRINT_PATCH"):
        os.environ.setdefault(f"RAY_TRAIN_ENABLE_{name}", "0")
    elastic = workers.least != workers.most
    trainer = JaxTrainer(
        work.run,
        jax_config=JaxConfig(),
        scaling_config=ScalingConfig(
            num_workers=(workers.least, workers.most) if elastic else workers.most,
            use_gpu="GPU" in workers.resources,
            resources_per_worker=dict(workers.resources),
            # One worker for each machine, as far as there are machines.
            placement_strategy="SPREAD",
            elastic_resize_monitor_interval_s=_RESIZE_SECONDS,
        ),
        run_config=RunConfig(
            storage_path=f"{work.directory}/{_FOLDER}",
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=max(keep, 1)),
            callbacks=[_callback(Failures(place))],
            worker_runtime_env={"env_vars": {"TF_CPP_MIN_LOG_LEVEL": "3"}},
            # What matters is printed by `Failures` and the first worker; Ray's files have all.
            logging_config=LoggingConfig(log_level="CRITICAL"),
        ),
    )
    before = signal.getsignal(signal.SIGINT)
    try:
        return trainer.fit()
    except SystemExit:  # Ray's handler of Ctrl-C, after it has ended the workers
        raise KeyboardInterrupt from None
    except ControllerError as error:
        cause = error.controller_failure
        if isinstance(cause, UserError | FloatingPointError):
            raise cause from None
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


# ---- before the workers start -------------------------------------------------------------------


def _refuse_uneven(experiment: schema.Experiment, workers: Workers) -> None:
    fitting = fitting_workers(experiment, workers.devices, workers.least)
    if fitting == workers.least:
        return
    devices = count_text(workers.least * workers.devices, "device")
    raise UserError(
        f"a batch of {experiment.train.batch_size} cannot be split evenly over "
        f"{count_text(workers.least, 'worker')} with {devices}",
        where=_WHERE,
        fix=(f"--workers {fitting}, or " if fitting else "") + "another train.batch_size",
    )


def _with_resources(workers: Workers, machines: list[dict[str, float]]) -> Workers:
    """Returns the workers with the resources that they have where none were given."""
    if workers.resources:
        return workers
    gpus = [machine["GPU"] for machine in machines if machine.get("GPU")]
    return replace(workers, resources={"GPU": int(min(gpus))} if gpus else {"CPU": 1})


def _refuse_shortage(workers: Workers, machines: list[dict[str, float]]) -> None:
    """Refuses machines on which the least number of workers has no room."""
    room = sum(
        min(int(machine.get(name, 0) // amount) for name, amount in workers.resources.items())
        for machine in machines
    )
    if room >= workers.least:
        return
    raise UserError(
        f"the Ray cluster has room for {room} of {workers.describe()}",
        where=_WHERE,
        fix="`ray status` shows its resources; start more machines, or ask for less with "
        "--workers and --resources",
    )


def _with_replicas(experiment: schema.Experiment, workers: Workers) -> schema.Experiment:
    """Returns an experiment whose steps compute the same for any number of workers."""
    fixed = workers.least == workers.most or experiment.devices.replicas
    if fixed or not depends_on_replicas(experiment.model):
        return experiment
    most = fitting_workers(experiment, workers.devices, workers.most)
    replicas = most * workers.devices // experiment.devices.spatial_partitions
    say_aside(f"devices.replicas={replicas}, for a step to be the same with fewer workers")
    return replace(experiment, devices=replace(experiment.devices, replicas=replicas))


# ---- in the controller --------------------------------------------------------------------------


@dataclass
class Failures:
    """Ends a run that has no chance: a worker's `UserError`, or failures without a checkpoint."""

    place: ModelPlace
    step: int = -1
    """Newest checkpoint at the last failure."""
    times: int = 0
    """Failures since then."""

    def after_exception(
        self, run_context: object, worker_exceptions: Mapping[int, Exception]
    ) -> None:
        """Prints what has failed; Ray starts the workers again unless this raises.

        Raises:
            UserError: a worker raised it, or there is no progress.
            FloatingPointError: a worker raised it.
        """
        for error in worker_exceptions.values():
            final = isinstance(error, UserError | FloatingPointError)
            if final and not isinstance(error, JoinError):
                raise error
        step = self.place.newest_step()
        self.times = self.times + 1 if step == self.step else 1
        self.step = step
        words = [
            f"worker {rank}: {type(error).__name__}: {_first_line(error)}"
            for rank, error in sorted(worker_exceptions.items())
        ]
        what = "; ".join(words)
        if self.times >= _MOST_FAILURES:
            raise UserError(
                f"the workers have failed {self.times} times without a new checkpoint; {what}",
                where=str(self.place),
                fix="the output of the workers says why; lower train.checkpoint_every if machines "
                "are lost often",
            )
        say_aside(f"stillbox: {what}; training goes on from step {step}")


def _first_line(error: Exception) -> str:
    return printable_line(str(error).partition("\n")[0])[:200]


def _callback(failures: Failures) -> object:
    """Returns it as a callback of Ray, whose classes exist with the extra only."""
    from ray.train import UserCallback

    class Callback(UserCallback):
        def after_exception(
            self, run_context: object, worker_exceptions: Mapping[int, Exception]
        ) -> None:
            failures.after_exception(run_context, worker_exceptions)

    return Callback()
