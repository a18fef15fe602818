"""Applies a function to items on the machines of a Ray cluster, in order."""

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stillbox.errors import UserError
from stillbox.extras import import_extra
from stillbox.records.parallel import OrderedMap
from stillbox.scaling.ray_cluster import connected, enter_driver, may_grow, running_machines

_LEAST_IN_PART, _MOST_PARTS = 16, 4096
# Ray's arguments of the resources that have one of their own.
_ARGUMENTS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def ray_map(
    *, workers: int = 0, resources: Mapping[str, float] | None = None, imports: Sequence[str] = ()
) -> Iterator[OrderedMap]:
    """Yields an ordered map for the cluster of `RAY_ADDRESS`, or for one that is started here.

    Every machine needs stillbox and the files that the function reads, under the same paths. A
    `UserError` or `OSError` of the function is raised here; a lost worker's items are done again.

    Args:
        workers: parts that are worked on at a time; 0: as many as have room.
        resources: amounts that each takes, by Ray's names; by default one CPU.
        imports: arguments of `--import`, which the workers import first.

    Raises:
        UserError: an extra is missing, the cluster does not answer, or it has no room.
    """
    # Imports JAX, which the workers do without.
    from stillbox.scaling.ray_scale import Workers, refuse_shortage

    import_extra("pyarrow", "ray")
    taken = Workers(workers or 1, workers or 1, dict(resources or {"CPU": 1}))
    with connected():
        if not may_grow():
            refuse_shortage(taken, running_machines())
        yield partial(_map, workers=workers, resources=taken.resources, imports=tuple(imports))


def _map(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    workers: int,
    resources: Mapping[str, float],
    imports: tuple[str, ...],
) -> Iterator[R]:
    if not items:
        return
    # Unlike pickle it takes the functions of a program's main file.
    from ray import cloudpickle
    from ray.data import TaskPoolStrategy

    size = max(_LEAST_IN_PART, math.ceil(len(items) / _MOST_PARTS))
    parts = [cloudpickle.dumps(items[start : start + size]) for start in range(0, len(items), size)]
    work = {"function": cloudpickle.dumps(function), "imports": imports, "folder": Path.cwd()}
    compute = TaskPoolStrategy(size=min(workers, len(parts)) or None)
    taken = _arguments_of(resources)
    yield from outcomes(_apply, parts, ordered=True, fn_kwargs=work, compute=compute, **taken)


def _arguments_of(resources: Mapping[str, float]) -> dict[str, object]:
    """Returns amounts as Ray's functions take them."""
    others = {name: amount for name, amount in resources.items() if name not in _ARGUMENTS}
    named = {_ARGUMENTS[name]: resources[name] for name in resources.keys() - others.keys()}
    return {**named, "resources": others}


def _apply(
    batch: Mapping[str, Sequence[bytes]], function: bytes, imports: tuple[str, ...], folder: Path
) -> Iterator[dict[str, list[bytes]]]:
    """Yields the results of a part one by one, which limits memory, up to the first error."""
    enter_driver(folder, imports)
    apply = pickle.loads(function)
    for item in pickle.loads(batch["part"][0]):
        try:
            yield outcome_row(apply(item))
        except (UserError, OSError) as error:
            yield outcome_row(error)
            return


def outcome_row(outcome: object) -> dict[str, list[bytes]]:
    """Returns a result as workers yield it, or an error.

    An error that is raised instead is wrapped in tracebacks of Ray's workers.
    """
    return {"outcome": [pickle.dumps(outcome)]}


def outcomes(
    work: Callable[..., object], parts: Sequence[bytes], *, ordered: bool, **options: object
) -> Iterator[Any]:
    """Yields the results of all parts, and raises one that is an exception.

    Args:
        work: called by workers with `{"part": [bytes]}`; returns or yields `outcome_row`.
        parts: each is a task of its own.
        ordered: results come in the order of the parts.
        options: more of Ray Data's `map_batches`.
    """
    from ray.data import DataContext, from_items

    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = ordered
    with DataContext.current(context):
        rows = from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
    for row in rows.map_batches(work, batch_size=1, **options).iter_rows():
        outcome = pickle.loads(row["outcome"])
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome
