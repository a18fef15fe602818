"""Which process of which job this is, as whoever started it says.

`mpirun`, `srun`, GKE and Cloud TPU tell every process its number, each in its own way. Nothing here
asks jax, so that a job can be looked at, and supervised, before jax is imported.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stillbox.errors import UserError

# JAX counts its own ports down from 65535; these lie below, and above what people choose.
_FIRST_PORT, _PORTS = 53_000, 4_096
_WHERE = "--coordinator"


@dataclass(frozen=True)
class Place:
    """The place of this process in a job of several."""

    index: int
    """Number of this process, from 0; process 0 writes what is written once."""
    count: int
    """Processes of the job."""
    coordinator: str
    """`HOST:PORT` where process 0 waits for the others; the port after it must be free too."""
    local_index: int = 0
    """Number of this process on its machine."""
    local_count: int = 1
    """Processes on this machine."""
    launcher: str = "the command line"
    """Who said so."""

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UserError(
                f"there is no process {self.index} among {self.count}",
                where="--process",
                fix=f"number them from 0 to {self.count - 1}",
            )
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_535:
            raise UserError(
                f"{self.coordinator!r} is no host with a port",
                where=_WHERE,
                fix="give the machine of process 0 and a free port of it, as in node1:53000",
            )


def find_place(
    environment: Mapping[str, str] | None = None,
    *,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> Place | None:
    """Returns the place of this process; None where it is the only one.

    Args:
        environment: variables to look at, those of this process if not given.
        coordinator: `HOST:PORT`, if somebody said it.
        processes: processes of the job, likewise.
        process: number of this one, likewise.

    Raises:
        UserError: what was said is not enough, or makes no sense.
    """
    said = (coordinator, processes, process)
    if any(word is not None for word in said):
        return _explicit(coordinator, processes, process)
    variables = os.environ if environment is None else environment
    for look in _LAUNCHERS:
        place = look(variables)
        if place is not None:
            return place if place.count > 1 else None
    return None


def _explicit(coordinator: str | None, processes: int | None, process: int | None) -> Place | None:
    if coordinator is None or processes is None or process is None:
        raise UserError(
            "a job of several processes needs all three of --coordinator, --processes, --process",
            where=_WHERE,
            fix="for example --coordinator node1:53000 --processes 4 --process 0 on node1",
        )
    place = Place(process, processes, coordinator)
    return place if processes > 1 else None


def _open_mpi(variables: Mapping[str, str]) -> Place | None:
    if not {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} <= variables.keys():
        return None
    count = int(variables["OMPI_COMM_WORLD_SIZE"])
    local_count = int(variables.get("OMPI_COMM_WORLD_LOCAL_SIZE", count))
    # The machine of mpirun, where process 0 is unless its list of machines leaves that one out:
    # "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911" of version 4, "prterun-node1-31159@1" of 5.
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
    namespace = variables.get("PMIX_NAMESPACE", "")
    found = re.search(r"tcp6?://\[?([^,\]:]+)", uri) or re.match(r"\w+-(.+)-\d+@", namespace)
    job = uri.partition(".")[0] or namespace
    if local_count == count:
        host = "127.0.0.1"
    elif found:
        host = found[1]
    else:
        raise UserError(
            "this Open MPI does not say on which machine process 0 is",
            where="mpirun",
            fix="add --coordinator HOST:PORT --processes N --process $OMPI_COMM_WORLD_RANK",
        )
    return Place(
        index=int(variables["OMPI_COMM_WORLD_RANK"]),
        count=count,
        coordinator=f"{host}:{_port_of(job)}",
        local_index=int(variables.get("OMPI_COMM_WORLD_LOCAL_RANK", 0)),
        local_count=local_count,
        launcher="Open MPI",
    )


def _slurm(variables: Mapping[str, str]) -> Place | None:
    # Not SLURM_NTASKS, which the batch script itself has too: it would wait for tasks that nobody
    # has started.
    if not {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_PROCID"} <= variables.keys():
        return None
    per_node = variables.get("SLURM_STEP_TASKS_PER_NODE", "1")
    return Place(
        index=int(variables["SLURM_PROCID"]),
        count=int(variables["SLURM_STEP_NUM_TASKS"]),
        coordinator=f"{first_host(variables['SLURM_STEP_NODELIST'])}:"
        f"{_port_of(variables.get('SLURM_JOB_ID', ''))}",
        local_index=int(variables.get("SLURM_LOCALID", 0)),
        local_count=_tasks_of_node(per_node, int(variables.get("SLURM_NODEID", 0))),
        launcher="SLURM",
    )


def _tpu_workers(variables: Mapping[str, str]) -> Place | None:
    """A slice of several machines: GKE sets these variables, and so does a TPU VM's image."""
    hosts = [name for name in variables.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(hosts) < 2 or "TPU_WORKER_ID" not in variables:
        return None
    return Place(
        index=int(variables["TPU_WORKER_ID"]),
        count=len(hosts),
        coordinator=f"{hosts[0]}:{_FIRST_PORT}",
        launcher="GKE or Cloud TPU",
    )


def first_host(nodes: str) -> str:
    """Returns the first machine of a list as SLURM writes it: `node[001-003,007],other`."""
    found = re.match(r"([^,\[]+)(?:\[([^,\-\]]+))?", nodes)
    if found is None:
        raise UserError(f"{nodes!r} names no machine", where="SLURM_STEP_NODELIST")
    return found[1] + (found[2] or "")


def _tasks_of_node(counts: str, node: int) -> int:
    """Reads `2(x3),1`: two tasks on each of three machines, one on the fourth."""
    every: list[int] = []
    for part in counts.split(","):
        tasks, _, times = part.partition("(x")
        every += [int(tasks)] * int(times.rstrip(")") or 1)
    return every[min(node, len(every) - 1)]


def _port_of(job: str) -> int:
    """Returns a port that all processes of a job agree on, and that two jobs rarely share."""
    digits = "".join(re.findall(r"\d+", job)) or "0"
    # Open MPI numbers its jobs in steps of 4,096: without the division all would have one port.
    number = int(digits)
    return _FIRST_PORT + 2 * ((number // _PORTS + number) % (_PORTS // 2))


_LAUNCHERS: tuple[Callable[[Mapping[str, str]], Place | None], ...] = (
    _open_mpi,
    _slurm,
    _tpu_workers,
)
