"""The processes of a job: joining it, and what they tell one another.

One process is a job too. Every function here then does what its name says without asking anybody,
so that callers need not know how many they are.
"""

import json
import os
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

# JAX ends a process by abort when another has been silent for so long. Whoever watches over the
# job is faster, and can say who it was.
_HEARTBEAT_SECONDS = 60

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


class Agreement:
    """Lets all processes know the largest number that any of them has, without waiting for it.

    Every call of `ask` starts a collective; `answer` gives the result of an older one, which is
    there by then, and which is the same in all processes.
    """

    def __init__(self) -> None:
        self._alone = jax.process_count() == 1
        self._asked: list[Any] = []
        if self._alone:
            return
        first = {device.process_index: device for device in reversed(jax.devices())}
        mesh = Mesh(np.asarray([first[index] for index in sorted(first)]), ("process",))
        self._rows = NamedSharding(mesh, PartitionSpec("process"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._largest = jax.jit(lambda numbers: numbers.max(), out_shardings=everywhere)

    def ask(self, number: int) -> None:
        """Starts to ask whether anybody has more than `number`."""
        if self._alone:
            self._asked.append(number)
            return
        own = np.asarray([number], np.int32)
        # The loop forbids transfers that nobody asked for; this one is meant.
        with jax.transfer_guard("allow"):
            rows = jax.make_array_from_process_local_data(self._rows, own)
        self._asked.append(self._largest(rows))

    def answer(self) -> int:
        """Returns the largest number of all calls of `ask` since the last answer.

        Where others have to be asked the last call is left for the next answer.
        """
        count = len(self._asked) if self._alone else max(len(self._asked) - 1, 0)
        ready, self._asked = self._asked[:count], self._asked[count:]
        return max((int(jax.device_get(number)) for number in ready), default=0)
