"""How many processors a process has, and how many threads make its images ready."""

import contextlib
import os

from stillbox.devices.launcher import Place, find_place
from stillbox.errors import UserError

# The part of a thread's work that holds Python's lock leaves nothing for more of them to do.
_MOST_INPUT_THREADS = 32


def input_threads(workers: int | None) -> int:
    """Returns the threads that decode and augment.

    Args:
        workers: what the experiment says; None: one for each processor of this process, at most 32.
    """
    return min(own_processors(), _MOST_INPUT_THREADS) if workers is None else workers


def own_processors() -> int:
    """Returns how many processors this process may keep busy without taking them from another.

    Those that whoever started it lets it run on; where several processes of a job are on one
    machine, no more than its part of them.
    """
    place = None
    with contextlib.suppress(UserError):  # was said where the job was joined, if it matters
        place = find_place()
    return min(_allowed(), _share(place))


def describe_binding(place: Place) -> str:
    """Returns a warning if a launcher keeps this process from its part of the machine, or nothing.

    `mpirun` binds each of two processes to one core, and `srun` gives a task one if not told.
    """
    allowed, share = _allowed(), _share(place)
    if allowed >= share:
        return ""
    return (
        f"warning: {place.launcher} lets this process use {allowed} of its {share} processors, and "
        "images may be late; mpirun --bind-to none, or srun --cpus-per-task N, gives it more"
    )


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _share(place: Place | None) -> int:
    return max((os.cpu_count() or 1) // (place.local_count if place else 1), 1)
