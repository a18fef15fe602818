"""How many processors a process has, and how many threads prepare its images."""

import contextlib
import os

from stillbox.devices.launcher import ProcessInfo, find_process
from stillbox.errors import UserError

# Part of a thread's work holds Python's global lock, so that more threads gain nothing.
_MOST_INPUT_THREADS = 32


def input_threads(workers: int | None) -> int:
    """Returns the number of threads that decode and augment images.

    Args:
        workers: of the experiment; None: one for each processor of this process, at most 32.
    """
    return min(own_processors(), _MOST_INPUT_THREADS) if workers is None else workers


def own_processors() -> int:
    """Returns how many processors this process may keep busy.

    Those that the system allows it; where several processes of a job share a machine, at most an
    equal part of it.
    """
    info = None
    with contextlib.suppress(UserError):  # raised where the job is joined, if it matters
        info = find_process()
    return min(_allowed(), _share(info))


def binding_warning(info: ProcessInfo) -> str:
    """Returns a warning if a launcher binds this process to less than its part of the machine.

    `mpirun` binds each of two processes to one core, and `srun` gives a task one by default.
    """
    allowed, share = _allowed(), _share(info)
    if allowed >= share:
        return ""
    return (
        f"warning: {info.launcher} lets this process use {allowed} of its {share} processors, and "
        "images may be late; mpirun --bind-to none, or srun --cpus-per-task N, gives it more"
    )


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _share(info: ProcessInfo | None) -> int:
    return max((os.cpu_count() or 1) // (info.local_count if info else 1), 1)
