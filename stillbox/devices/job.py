"""The processes of a job: joining it, and what they tell one another.

One process is a job too. Every function here then does what its name says without asking anybody,
so that callers need not know how many they are.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stillbox.devices.launcher import Place
from stillbox.errors import UserError

Tree = TypeVar("Tree")

# JAX ends a process by abort when another has been silent for so long; half of it may have passed
# already when a connection is lost. Whoever watches over the job is faster, and can say who it was.
_HEARTBEAT_SECONDS = 120

# Two values that still are part of a sentence.
_SHORT = 200


def join_job(place: Place) -> None:
    """Makes the devices of all processes known to this one; waits until all are there.

    Raises:
        UserError: they do not come.
    """
    try:
        jax.distributed.initialize(
            place.coordinator,
            num_processes=place.count,
            process_id=place.index,
            local_device_ids=_own_devices(place),
            # Whoever asked has looked already, and looked better.
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except RuntimeError as error:
        raise UserError(
            f"process {place.index} of {place.count} cannot join the others: "
            f"{str(error).splitlines()[0]}",
            where=place.coordinator,
            fix="start all processes at about the same time, with this port of the first machine "
            "free and reachable",
        ) from error


def leave_job() -> None:
    """Ends the connection with the others, when all of them are here."""
    jax.distributed.shutdown()


def _own_devices(place: Place) -> list[int] | None:
    """Returns which of the GPUs that it sees a process takes; None: all of them.

    Where the processes of a machine share its GPUs evenly each has a part. A launcher that has
    given every process its own, or a machine with one process, leaves nothing to be divided.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES")
    if place.local_count == 1:
        return None
    if visible is None:
        return [place.local_index]
    share, rest = divmod(len(visible.split(",")), place.local_count)
    if rest or not share:
        return None
    return list(range(place.local_index * share, (place.local_index + 1) * share))


def is_first() -> bool:
    """Whether this is the process that writes what is written once."""
    return jax.process_index() == 0


def say_as_process(text: str) -> None:
    """Prints a line to standard error that only this process can say.

    All but the first are silent otherwise.
    """
    if jax.process_count() > 1:
        text = f"process {jax.process_index()} of {jax.process_count()}: {text}"
    print(text, file=sys.stderr if is_first() else sys.__stderr__, flush=True)


def collected(tree: Tree) -> Tree:
    """Returns a pytree of arrays each of which can be read whole in every process.

    All processes have to call it, with the same tree: what lies spread over them is collected.
    """
    if jax.process_count() == 1:
        return tree

    def collect(array: Any) -> Any:  # noqa: ANN401
        if isinstance(array, jax.Array) and not array.is_fully_replicated:
            return multihost_utils.process_allgather(array, tiled=True)
        return array

    whole: Tree = jax.tree.map(collect, tree)
    return whole


def to_host(tree: Tree) -> Tree:
    """Returns a pytree of arrays as numpy arrays, whole in every process; see `collected`."""
    host: Tree = jax.device_get(collected(tree))
    return host


def own_rows(array: np.ndarray | jax.Array) -> np.ndarray:
    """Returns the rows of an array `[B, ...]`, split over data, that lie in this process."""
    if not isinstance(array, jax.Array):
        return array
    pieces = {shard.index[0].start or 0: shard for shard in array.addressable_shards}
    rows = [_full_height(array, pieces[start].index) for start in sorted(pieces)]
    return np.concatenate(rows)


def _full_height(array: jax.Array, index: tuple[slice, ...]) -> np.ndarray:
    """Returns some rows whole, put together from their parts along the other axes."""
    same = [one for one in array.addressable_shards if one.index[0] == index[0]]
    start, stop, _ = index[0].indices(array.shape[0])
    whole = np.empty((stop - start, *array.shape[1:]), array.dtype)
    for shard in same:
        whole[(slice(None), *shard.index[1:])] = jax.device_get(shard.data)
    return whole


def all_rows(array: np.ndarray | jax.Array) -> np.ndarray:
    """Returns the rows `[B / P, ...]` of all P processes, one after the other: `[B, ...]`."""
    if jax.process_count() == 1:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(np.asarray(array), tiled=True))


def broadcast_text(text: str) -> str:
    """Returns the first process's text in all processes."""
    if jax.process_count() == 1:
        return text
    own = np.frombuffer(text.encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(own))))
    padded = np.zeros(length, np.uint8)
    if is_first():
        padded[:] = own
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded))).decode()


def of_first(value: Tree) -> Tree:
    """Returns the first process's value in all processes; JSON has to be able to hold it."""
    if jax.process_count() == 1:
        return value
    found: Tree = json.loads(broadcast_text(json.dumps(value)))
    return found


def refuse_different(what: str, value: str, *, fix: str) -> None:
    """Makes sure that all processes mean the same.

    Args:
        what: for the message, as in "the experiment".
        value: what has to be the same.
        fix: how to mend it.

    Raises:
        UserError: this process has another value than the first.
    """
    first = broadcast_text(value)
    if first != value:
        raise UserError(
            f"process {jax.process_index()} has another {what} than process 0"
            + (f": {value} instead of {first}" if len(value + first) < _SHORT else ""),
            where=what,
            fix=fix,
        )


@contextmanager
def first_process_first() -> Iterator[None]:
    """Lets the first process go ahead, and the others follow when it has left."""
    if not is_first():
        multihost_utils.sync_global_devices("first process first")
    yield
    if is_first() and jax.process_count() > 1:
        multihost_utils.sync_global_devices("first process first")


class Exchange:
    """Lets all processes know what numbers each of them has, without waiting for it.

    Every call of `tell` starts a collective; `heard` gives the results of older ones, which are
    there by then, and which are the same in all processes. All have to call both equally often.

    Args:
        width: how many numbers each process has, W.
    """

    def __init__(self, width: int) -> None:
        self._alone = jax.process_count() == 1
        self._width = width
        self._told: list[np.ndarray | jax.Array] = []
        if self._alone:
            return
        first = {device.process_index: device for device in reversed(jax.devices())}
        mesh = Mesh(np.asarray([first[index] for index in sorted(first)]), ("process",))
        self._rows = NamedSharding(mesh, PartitionSpec("process"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._gather = jax.jit(lambda numbers: numbers, out_shardings=everywhere)

    def tell(self, *numbers: float) -> None:
        """Starts to give this process's numbers to all."""
        own = np.asarray([numbers], np.float32)
        if own.shape != (1, self._width):
            raise ValueError(f"{len(numbers)} numbers instead of {self._width}")
        if self._alone:
            self._told.append(own)
            return
        # The loop forbids transfers that nobody asked for; this one is meant.
        with jax.transfer_guard("allow"):
            rows = jax.make_array_from_process_local_data(self._rows, own)
        self._told.append(self._gather(rows))

    def heard(self) -> np.ndarray:
        """Returns the numbers `[N, P, W]` of all P processes in the N calls of `tell` since the
        last answer; where others have to be asked the newest call is left for the next answer."""
        count = len(self._told) if self._alone else max(len(self._told) - 1, 0)
        ready, self._told = self._told[:count], self._told[count:]
        shape = (count, jax.process_count(), self._width)
        return np.asarray(jax.device_get(ready), np.float32).reshape(shape)
