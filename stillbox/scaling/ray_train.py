"""Trains on a Ray cluster with Ray Train's `JaxTrainer`.

Ray starts the workers, replaces lost ones and changes their number; every worker runs the training
loop. The state of a run is in its model directory, from which each new group of workers resumes.

`JaxTrainer` would start `jax.distributed` itself for GPUs and TPUs only, number the GPUs of every
worker from 0 on, also of two workers on one machine, and number the machines of a slice in another
order than the TPUs do. The workers therefore join by `join_job`.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.devices.announcing import say_aside
from stillbox.devices.job import JoinError
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.imports import imports_of
from stillbox.experiment.yaml_config import store_paths, to_yaml
from stillbox.extras import import_extra
from stillbox.printing import printable_line
from stillbox.scaling.ray_cluster import connected, may_grow, running_machines
from stillbox.scaling.ray_scale import (
    Workers,
    refuse_shortage,
    refuse_slice,
    refuse_uneven,
    with_replicas,
    with_resources,
)
from stillbox.scaling.ray_worker import Work

if TYPE_CHECKING:
    from ray.train import Result

# Ray's own files of a run, in the model directory.
_FOLDER = "ray"
# Failures without a new checkpoint between them that end a run.
_MOST_FAILURES = 3
# How often Ray considers another number of workers.
_RESIZE_SECONDS = 60.0

Ended = TypeVar("Ended")


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
    # Devices that share an image may be the GPUs of a machine, which only the cluster knows.
    if workers.resources or experiment.devices.spatial_partitions == 1:
        refuse_uneven(experiment, workers)
    import_extra("ray.train", "ray")
    with connected(output_of_workers=True):
        machines = running_machines()
        workers = with_resources(workers, machines)
        refuse_uneven(experiment, workers)
        if workers.slice is not None:
            refuse_slice(workers.slice)
        if not may_grow():
            refuse_shortage(workers, machines)
        experiment = with_replicas(experiment, workers)
        say_aside(f"training on Ray: {workers.describe()}")
        work = Work(
            train=train,
            experiment=to_yaml(store_paths(experiment, place.folder)),
            imports=imports_of(experiment),
            directory=str(place) if place.remote else str(place.folder.absolute()),
            arguments=arguments,
            devices=workers.devices,
            platform=workers.platform,
            per_slice=workers.per_slice,
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
    trainer = JaxTrainer(
        work.run,
        jax_config=JaxConfig(),
        scaling_config=ScalingConfig(
            **workers.scaling(),
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
        problem = "; ".join(words)
        if self.times >= _MOST_FAILURES:
            raise UserError(
                f"the workers have failed {self.times} times without a new checkpoint; {problem}",
                where=str(self.place),
                fix="the output of the workers says why; lower train.checkpoint_every if machines "
                "are lost often",
            )
        say_aside(f"stillbox: {problem}; training goes on from step {step}")


def _first_line(error: Exception) -> str:
    return printable_line(str(error).partition("\n")[0])[:200]


def _callback(failures: Failures) -> object:
    """Returns a callback of Ray; Ray's classes exist with the extra only."""
    from ray.train import UserCallback

    class Callback(UserCallback):
        def after_exception(
            self, run_context: object, worker_exceptions: Mapping[int, Exception]
        ) -> None:
            failures.after_exception(run_context, worker_exceptions)

    return Callback()
