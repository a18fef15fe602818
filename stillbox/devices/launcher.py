"""The index of this process in a job, as the command line or a launcher gives it.

`mpirun`, `srun`, `torchrun`, GKE and Cloud TPU number their processes, each in its own way. A job
is refused if its processes have numbers but no address of the first: each would train by itself.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stillbox import numerals
from stillbox.errors import UserError
from stillbox.references import Parameter

# JAX counts its own ports down from 65535; these are below, and above what people choose.
FIRST_PORT, PORTS = 53_000, 4_096
_WHERE = str(Parameter("coordinator"))
_NODES = 2**16
"""No job has more machines."""


@dataclass(frozen=True)
class ProcessInfo:
    """A process in a job of several.

    Raises:
        UserError: the index or the coordinator is impossible.
    """

    index: int
    """From 0; process 0 writes what is written once."""
    count: int
    """Processes of the job."""
    coordinator: str
    """`HOST:PORT` where process 0 waits for the others."""
    local_index: int = 0
    """Index of this process on its machine."""
    local_count: int = 1
    """Processes on this machine."""
    launcher: str = "the command line"
    """Where the index comes from."""

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UserError(
                f"there is no process {self.index} among {self.count}",
                where=Parameter("process"),
                fix=f"number them from 0 to {self.count - 1}",
            )
        host, _, port = self.coordinator.rpartition(":")
        if not host or not 0 < (numerals.count(port) or 0) < 65_536:
            raise UserError(
                f"{self.coordinator!r} is no host with a port",
                where=_WHERE,
                fix="give the machine of process 0 and a free port of it, as in node1:53000",
            )


def find_process(
    environment: Mapping[str, str] | None = None,
    *,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> ProcessInfo | None:
    """Returns the index of this process in its job; None where it is the only one.

    The three options of the command line outrank the variables of a launcher, by default the
    variables of this process. Raises `UserError` if an option is missing or invalid.
    """
    info: ProcessInfo | None
    if coordinator is not None and processes is not None and process is not None:
        info = ProcessInfo(process, processes, coordinator)
    elif coordinator is not None or processes is not None or process is not None:
        raise UserError(
            f"a job of several processes needs all three of {Parameter('coordinator')}, "
            f"{Parameter('processes')}, {Parameter('process')}",
            where=_WHERE,
            fix=f"for example {Parameter('coordinator', 'node1:53000')} "
            f"{Parameter('processes', '4')} {Parameter('process', '0')} on node1",
        )
    else:
        variables = os.environ if environment is None else environment
        read = (_open_mpi, _slurm, _tpu_slice, _torchrun, _mpich)
        infos = (reader(variables) for reader in read)
        info = next(filter(None, infos), None)
        if info is None:
            _refuse_indexed(variables)
    return info if info and info.count > 1 else None


def _open_mpi(variables: Mapping[str, str]) -> ProcessInfo | None:
    if not {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} <= variables.keys():
        return None
    count = _number(variables, "OMPI_COMM_WORLD_SIZE")
    local_count = _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", count)
    # The machine of mpirun runs process 0, unless its list of machines leaves that one out:
    # "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911" of version 4, "prterun-node1-31159@1" of 5.
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
    namespace = variables.get("PMIX_NAMESPACE", "")
    machine = re.search(r"tcp6?://\[?([^,\]:]+)", uri) or re.match(r"\w+-(.+)-\d+@", namespace)
    job = uri.partition(".")[0] or namespace
    if local_count == count:
        host = "127.0.0.1"
    elif machine:
        host = machine[1]
    else:
        raise _no_first("this Open MPI", "mpirun", "$OMPI_COMM_WORLD_RANK")
    return ProcessInfo(
        index=_number(variables, "OMPI_COMM_WORLD_RANK"),
        count=count,
        coordinator=f"{host}:{_port_of(job)}",
        local_index=_number(variables, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        local_count=local_count,
        launcher="Open MPI",
    )


def _slurm(variables: Mapping[str, str]) -> ProcessInfo | None:
    # Not SLURM_NTASKS: the batch script itself has it too, and would wait for tasks that are not
    # started.
    if not {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_PROCID"} <= variables.keys():
        return None
    per_node = variables.get("SLURM_STEP_TASKS_PER_NODE", "1")
    return ProcessInfo(
        index=_number(variables, "SLURM_PROCID"),
        count=_number(variables, "SLURM_STEP_NUM_TASKS"),
        coordinator=f"{first_host(variables['SLURM_STEP_NODELIST'])}:"
        f"{_port_of(variables.get('SLURM_JOB_ID', ''))}",
        local_index=_number(variables, "SLURM_LOCALID", 0),
        local_count=_tasks_of_node(per_node, _number(variables, "SLURM_NODEID", 0)),
        launcher="SLURM",
    )


def _tpu_slice(variables: Mapping[str, str]) -> ProcessInfo | None:
    """Reads the variables of GKE and of a TPU VM's image on a slice of several machines."""
    hosts = [name for name in variables.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(hosts) < 2 or "TPU_WORKER_ID" not in variables:
        return None
    return ProcessInfo(
        index=_number(variables, "TPU_WORKER_ID"),
        count=len(hosts),
        coordinator=f"{hosts[0]}:{FIRST_PORT}",
        launcher="GKE or Cloud TPU",
    )


def _torchrun(variables: Mapping[str, str]) -> ProcessInfo | None:
    """Reads the variables of torchrun and of Kubeflow's PyTorchJob."""
    if not _of_several(variables, "WORLD_SIZE", "RANK"):
        return None
    host = variables.get("MASTER_ADDR", "")
    if not host:
        raise _no_first("WORLD_SIZE without MASTER_ADDR", "MASTER_ADDR", "$RANK")
    return ProcessInfo(
        index=_number(variables, "RANK"),
        count=_number(variables, "WORLD_SIZE"),
        # The launcher's own server has its port.
        coordinator=f"{host}:{_port_of(variables.get('MASTER_PORT', ''))}",
        local_index=_number(variables, "LOCAL_RANK", 0),
        local_count=_number(variables, "LOCAL_WORLD_SIZE", 1),
        launcher="torchrun",
    )


def _mpich(variables: Mapping[str, str]) -> ProcessInfo | None:
    """Reads the variables of MPICH and of Intel MPI, which name no machine."""
    if not _of_several(variables, "PMI_SIZE", "PMI_RANK"):
        return None
    launcher = "Intel MPI" if any(name.startswith("I_MPI_") for name in variables) else "MPICH"
    count, local_count = _number(variables, "PMI_SIZE"), _number(variables, "MPI_LOCALNRANKS", 0)
    if local_count != count:
        raise _no_first(launcher, "mpiexec", "$PMI_RANK")
    return ProcessInfo(
        index=_number(variables, "PMI_RANK"),
        count=count,
        coordinator=f"127.0.0.1:{_port_of(variables.get('I_MPI_HYDRA_UUID', ''))}",
        local_index=_number(variables, "MPI_LOCALRANKID", 0),
        local_count=local_count,
        launcher=launcher,
    )


def _of_several(variables: Mapping[str, str], count: str, index: str) -> bool:
    """Whether variables with these common names number the processes of a job."""
    processes, number = (numerals.count(variables.get(name, "")) for name in (count, index))
    return number is not None and processes is not None and processes > 1


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Returns the number that a launcher has put into a variable."""
    text = variables.get(name)
    number = default if text is None else numerals.count(text)
    if number is None:
        problem = f"{text!r} is no number from 0 on"
        raise UserError(problem, where=name, fix="unset it, or start the job with its launcher")
    return number


def _refuse_indexed(variables: Mapping[str, str]) -> None:
    """Refuses an indexed Job of Kubernetes, unless it is a TPU of one machine."""
    if "JOB_COMPLETION_INDEX" in variables and "TPU_WORKER_HOSTNAMES" not in variables:
        problem = "an indexed Job of Kubernetes does not say how many processes train together"
        fix = (
            f"add {Parameter('coordinator', 'JOB-0.SERVICE:53000')} {Parameter('processes', 'N')} "
            f"{Parameter('process', '$(JOB_COMPLETION_INDEX)')}; for a run of its own in each pod "
            f"{Parameter('coordinator', 'localhost:53000')} {Parameter('processes', '1')} "
            f"{Parameter('process', '0')}, with a folder of its own"
        )
        raise UserError(problem, where="JOB_COMPLETION_INDEX", fix=fix)


def _no_first(who: str, where: str, index: str) -> UserError:
    problem = f"{who} does not say on which machine process 0 is"
    fix = (
        f"add {Parameter('coordinator', 'HOST:PORT')} {Parameter('processes', 'N')} "
        f"{Parameter('process', f'{index}')}"
    )
    return UserError(problem, where=where, fix=fix)


def first_host(nodes: str) -> str:
    """Returns the first machine of a list of SLURM's.

    It is `rack0node001` of `rack[0-1]node[001-003,007],other`.
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    if first is None:
        raise UserError(f"{nodes!r} names no machine", where="SLURM_STEP_NODELIST")
    return re.sub(r"\[([^,\-\]]+)[^\]]*\]", r"\1", first[0])


def _tasks_of_node(counts: str, node: int) -> int:
    """Returns the tasks of a machine; `2(x3),1`: two on each of three machines, one on a fourth."""
    every: list[int] = []
    for part in counts.split(","):
        tasks, _, times = part.partition("(x")
        every += [numerals.count(tasks) or 1] * min(numerals.count(times.rstrip(")")) or 1, _NODES)
    return every[min(node, len(every) - 1)]


def _port_of(job: str) -> int:
    """Returns a port that is the same for all processes of a job, and rarely for two jobs."""
    number = numerals.digits("".join(re.findall("[0-9]+", job))[:300]) or 0
    # Open MPI numbers its jobs in steps of 4,096: without the division all would have one port.
    return FIRST_PORT + (number // PORTS + number) % PORTS
