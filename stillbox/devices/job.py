"""The processes of a job: joining it, and collectives between the hosts.

A single process is a job too: every function works without the others then, and callers need not
distinguish the two.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stillbox.devices.announcing import StallReporter
from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.process import binding_warning
from stillbox.errors import UserError
from stillbox.jax_internals import missing_processes_named, multihost_utils
from stillbox.system import allow_open_files

Tree = TypeVar("Tree")

# After so long without an answer JAX ends the processes of a job.
_HEARTBEAT_SECONDS = 30
# How long to wait for the others, and when that is first reported.
_JOIN_SECONDS, _REPORT_SECONDS = 300, 30.0

# Characters up to which two different values are quoted in a message.
_SHORT = 200


class JoinError(UserError):
    """The processes of a job do not come together."""


@contextmanager
def only_first_prints(info: ProcessInfo) -> Iterator[None]:
    """Silences the other processes while it is entered; the first prints its place."""
    if info.index == 0:
        print(f"process 0 of {info.count}, as {info.launcher} says", file=sys.stderr)
        if warning := binding_warning(info):
            print(warning, file=sys.stderr)
        yield
        return
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield


def join_job(info: ProcessInfo) -> None:
    """Starts JAX with the devices of all processes.

    Raises:
        JoinError: some process does not come.
        UserError: the processes of a machine cannot share its GPUs.
    """
    allow_open_files()
    who = f"process {info.index} of {info.count}"
    stalls = StallReporter(
        _REPORT_SECONDS,
        lambda line: print(f"{who}: {line}", file=sys.__stderr__, flush=True),
    )
    # A job on one machine is not reached from outside.
    local = info.coordinator.startswith(("127.", "localhost:"))
    try:
        with (
            missing_processes_named(_JOIN_SECONDS),
            _interruptible(),
            stalls,
            stalls.waiting(
                f"the other processes to start and to reach process 0 at {info.coordinator}"
            ),
        ):
            jax.distributed.initialize(
                info.coordinator,
                num_processes=info.count,
                process_id=info.index,
                local_device_ids=_own_devices(info),
                # `find_process` has detected the job already, also for other launchers.
                cluster_detection_method="deactivate",
                # The service's own time-out names those that are missing.
                initialization_timeout=_JOIN_SECONDS + int(_REPORT_SECONDS),
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
                coordinator_bind_address=info.coordinator if local else None,
            )
    except RuntimeError as error:
        raise JoinError(
            f"{who} cannot join the others: {str(error).splitlines()[0]}",
            where=info.coordinator,
            fix="start all processes at about the same time, with this port of the first machine "
            "free and reachable",
        ) from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Ctrl-C end the process while JAX waits, where no handler of Python is called."""
    handler = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread() and handler != signal.SIG_IGN
    if here:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if here:
            signal.signal(signal.SIGINT, handler)


def _own_devices(info: ProcessInfo, devices: Path = Path("/dev")) -> list[int] | None:
    """Returns the indices of a process's GPUs among those that are visible; None: all of them.

    The processes of a machine share its GPUs evenly. The launcher has divided them already if fewer
    are visible than there are processes, or as many as SLURM gives a task.

    Args:
        devices: folder of the system's devices, where NVIDIA's are counted without a variable.

    Raises:
        UserError: some would be left over.
    """
    hip = os.environ.get("HIP_VISIBLE_DEVICES")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", hip)
    # Of other devices each process has one; on a processor the index has no effect.
    there = max(len(list(devices.glob("nvidia[0-9]*"))), info.local_count)
    count = there if visible is None else len(visible.split(","))
    per_task = os.environ.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]
    if info.local_count == 1 or count < info.local_count or per_task == str(count):
        return None
    share, rest = divmod(count, info.local_count)
    if rest and os.environ.get("JAX_PLATFORMS") != "cpu":
        problem = f"{info.local_count} processes of a machine cannot share {count} GPUs evenly"
        fix = f"let it name {count - rest} of them, or start another number of processes"
        raise UserError(problem, where="CUDA_VISIBLE_DEVICES", fix=fix)
    first = info.local_index * share
    return list(range(first, first + share))


def is_main_process() -> bool:
    """Whether this is process 0, which writes what is written once."""
    return jax.process_index() == 0


def replicated_tree(tree: Tree) -> Tree:
    """Returns a pytree of arrays in which sharded ones are replicated in every process.

    All processes have to call it, with the same tree.
    """
    if jax.process_count() == 1:
        return tree

    def gather(array: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
        if isinstance(array, jax.Array) and not array.is_fully_replicated:
            array = multihost_utils.process_allgather(array, tiled=True)
        return array

    whole: Tree = jax.tree.map(gather, tree)
    return whole


def to_host(tree: Tree) -> Tree:
    """Returns a pytree of arrays as numpy arrays, replicated as by `replicated_tree`."""
    host: Tree = jax.device_get(replicated_tree(tree))
    return host


def local_rows(array: np.ndarray | jax.Array) -> np.ndarray:
    """Returns the rows of this process of an array `[B, ...]` that is sharded over data."""
    if not isinstance(array, jax.Array):
        return array
    pieces = {shard.index[0].start or 0: shard for shard in array.addressable_shards}
    return np.concatenate([_full_rows(array, pieces[start].index) for start in sorted(pieces)])


def _full_rows(array: jax.Array, index: tuple[slice, ...]) -> np.ndarray:
    """Returns the rows of a shard, put together from shards along the other axes."""
    start, stop, _ = index[0].indices(array.shape[0])
    whole = np.empty((stop - start, *array.shape[1:]), array.dtype)
    for shard in array.addressable_shards:
        if shard.index[0] == index[0]:
            whole[(slice(None), *shard.index[1:])] = jax.device_get(shard.data)
    return whole


def gather_rows(array: np.ndarray | jax.Array) -> np.ndarray:
    """Returns the rows `[B / P, ...]` of all P processes, one after the other: `[B, ...]`."""
    if jax.process_count() == 1:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(np.asarray(array), tiled=True))


def broadcast(value: Tree) -> Tree:
    """Returns process 0's value in all processes; JSON has to be able to hold it."""
    if jax.process_count() == 1:
        return value
    encoded = np.frombuffer(json.dumps(value).encode(), np.uint8)
    padded = np.zeros(int(multihost_utils.broadcast_one_to_all(np.int32(len(encoded)))), np.uint8)
    if is_main_process():
        padded[:] = encoded
    received: Tree = json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded))))
    return received


def require_same(name: str, value: str, *, fix: str) -> None:
    """Refuses a value that differs between the processes.

    Args:
        name: of the value, as in "the experiment".
        value: what has to be the same.
        fix: how to mend it.

    Raises:
        UserError: this process has another value than process 0.
    """
    first = broadcast(value)
    if first != value:
        raise UserError(
            f"process {jax.process_index()} has another {name} than process 0"
            + (f": {value} instead of {first}" if len(value + first) < _SHORT else ""),
            where=name,
            fix=fix,
        )


@contextmanager
def main_process_first() -> Iterator[None]:
    """Is entered by process 0 first, and by the others when it has left."""
    if not is_main_process():
        multihost_utils.sync_global_devices("main process first")
    yield
    if is_main_process() and jax.process_count() > 1:
        multihost_utils.sync_global_devices("main process first")


class AsyncAllGather:
    """Gathers some numbers of each process in all processes, without waiting for the others.

    Every `start` begins a collective; `results` returns older ones, which are there by then and are
    the same in all processes. All processes have to call both equally often.

    Args:
        width: how many numbers each process has, W.
    """

    def __init__(self, width: int) -> None:
        self._alone = jax.process_count() == 1
        self._width = width
        self._started: list[np.ndarray | jax.Array] = []
        if self._alone:
            return
        first = {device.process_index: device for device in reversed(jax.devices())}
        mesh = Mesh(np.asarray([first[index] for index in sorted(first)]), ("process",))
        self._rows = NamedSharding(mesh, PartitionSpec("process"))
        replicated = NamedSharding(mesh, PartitionSpec())
        self._gather = jax.jit(lambda numbers: numbers, out_shardings=replicated)

    def start(self, *numbers: float) -> None:
        """Begins to gather this process's numbers."""
        row = np.asarray([numbers], np.float32)
        if row.shape != (1, self._width):
            raise ValueError(f"{len(numbers)} numbers instead of {self._width}")
        if self._alone:
            self._started.append(row)
            return
        # The training loop forbids implicit transfers; this one is intended.
        with jax.transfer_guard("allow"):
            rows = jax.make_array_from_process_local_data(self._rows, row)
        self._started.append(self._gather(rows))

    def results(self) -> np.ndarray:
        """Returns the numbers `[N, P, W]` of all P processes in the N calls of `start` since the
        last results; with other processes the newest call is left for the next results."""
        count = len(self._started) if self._alone else max(len(self._started) - 1, 0)
        ready, self._started = self._started[:count], self._started[count:]
        shape = (count, jax.process_count(), self._width)
        return np.asarray(jax.device_get(ready), np.float32).reshape(shape)
