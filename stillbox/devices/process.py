"""Settings of this process before JAX starts: the allocator, libtpu, XLA, processors and threads.

The C library's allocator gives a program on a CPU its arrays. A train step takes its temporary
arrays anew: 1.3 GB for SSD MobileNet v1 in batches of 16. In pages of 4 KiB Linux hands out
340,000 of them in every step, each filled with zeros.

With the extra `[tpu]` JAX looks for a TPU at every start. Where there is none, the TPU library
libtpu takes a lock that a second program fails on, writes logs into /tmp and prints two errors,
because it lacks facts that only a machine with a TPU provides.
"""

import contextlib
import ctypes
import os
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from stillbox.devices.launcher import ProcessInfo, find_process
from stillbox.errors import UserError
from stillbox.system import (
    admit_interrupts,
    allowed_processors,
    glibc_version,
    hold_interrupts,
)

# Numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

_LARGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
"""Variable that makes glibc ask Linux for pages of 2 MiB, read at the start of a process alone."""

_LEAST_GLIBC = (2, 35)
_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_large_pages() -> None:
    """Starts this command again in the same process, in which arrays have pages of 2 MiB.

    A train step of SSD MobileNet v1 or SSD ResNet-34 on two cores takes 8 to 31 % less
    (benchmarks/README.md).

    Returns where nothing is to be gained: another C library or a glibc before 2.35, an allocator
    that the environment configures, a system that gives such pages to all processes or to none.
    """
    name, value = _LARGE_PAGES
    if os.environ.get(name) != value:
        if _tuned() or not _on_demand():
            return
        os.environ[name] = value
        # Ctrl-C waits until the new interpreter can handle it.
        hold_interrupts()
        # Without the restart the command is slower, and otherwise the same.
        with suppress(OSError):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    # In the new interpreter too: `stillbox.cli` does so earlier, for programs of its own name.
    admit_interrupts()


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory for the next step; False where it cannot.

    Arrays above 64 MB that threads of XLA take are returned to the system all the same.

    An allocator that is configured by the environment is left as it is.
    """
    if _tuned() or not glibc_version():
        return False
    library = ctypes.CDLL(None)
    # -1: never trim; 0: map nothing by itself, because that is returned when freed.
    return bool(library.mallopt(_M_TRIM_THRESHOLD, -1) and library.mallopt(_M_MMAP_MAX, 0))


def release_freed_memory() -> None:
    """Returns freed memory to the system, on glibc.

    Compiling frees much of what it took: 9 GiB for the train step of SpineNet-190.
    """
    if glibc_version():
        ctypes.CDLL(None).malloc_trim(0)


def _tuned() -> bool:
    """Returns whether a user has configured the allocator."""
    name, value = _LARGE_PAGES
    configured = any(key.startswith("MALLOC_") for key in os.environ)
    return configured or os.environ.get(name, value) != value


def _on_demand() -> bool:
    """Returns whether Linux gives large pages to the processes that ask, and glibc can ask."""
    try:
        return glibc_version() >= _LEAST_GLIBC and "[madvise]" in _PAGES.read_text(encoding="ascii")
    except OSError:
        return False


# No device is made of these; slices that programs are compiled for are described in full.
_FACTS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def silence_libtpu(devices: Path = Path("/dev")) -> None:
    """Sets the variables that libtpu lacks on a machine without a TPU, unless they are set.

    Call it before JAX starts its devices.

    Args:
        devices: folder of the system's devices.
    """
    if any(devices.glob("accel*")) or any(devices.glob("vfio/[0-9]*")):
        return
    for name, value in _FACTS.items():
        os.environ.setdefault(name, value)


_YNNPACK = "--xla_cpu_experimental_ynn_fusion_type"


def keep_fusions_whole() -> None:
    """Limits YNNPACK in XLA's CPU backend to single matrix products, before its first program.

    From jax 0.10.2 on YNNPACK takes sums and elementwise operations too, and makes arrays in memory
    of their operands: the focal loss needs seven arrays as large as the logits and not one, and
    twice the time. With a product it takes the operations before it: each slice of an image that is
    summed becomes an array, copied by a function that LLVM compiles.

    XLA ends the process at a flag that it does not know. The flag is therefore set for the releases
    that were tried.
    """
    release = tuple(map(int, re.findall(r"\d+", metadata.version("jax"))[:3]))
    flags = os.environ.get("XLA_FLAGS", "")
    if (0, 10, 2) <= release <= (0, 12, 0) and _YNNPACK not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_YNNPACK}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT".strip()


# Part of a thread's work holds Python's global lock, so that more threads gain nothing.
_MOST_INPUT_THREADS = 32


def input_threads(workers: int | None, processes: int = 0) -> int:
    """Returns the number of threads that decode and augment images, in each process that does.

    Args:
        workers: of the experiment; None: one for each processor of this process, at most 32 in
            one process.
        processes: those that make batches; 0: this one does.
    """
    total = own_processors() if workers is None else workers
    threads = -(-total // max(processes, 1))
    return min(threads, _MOST_INPUT_THREADS) if workers is None else threads


def own_processors() -> int:
    """Returns how many processors this process may keep busy.

    Those that the system allows it; where several processes of a job share a machine, at most an
    equal part of it.
    """
    return min(allowed_processors(), _share(processes_here()))


def processes_here() -> int:
    """Returns how many processes of a job share this machine, as far as a launcher says."""
    info = None
    with contextlib.suppress(UserError):  # raised where the job is joined, if it matters
        info = find_process()
    return info.local_count if info else 1


def processor_name() -> str:
    """Returns the processor's model, as far as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


def binding_warning(info: ProcessInfo) -> str:
    """Returns a warning if a launcher binds this process to less than its part of the machine.

    `mpirun` binds each of two processes to one core, and `srun` gives a task one by default.
    """
    allowed, share = allowed_processors(), _share(info.local_count)
    if allowed >= share:
        return ""
    return (
        f"warning: {info.launcher} lets this process use {allowed} of its {share} processors, "
        f"and images may be late; mpirun --bind-to none, or srun "
        f"--cpus-per-task N, gives it more"
    )


def _share(processes: int) -> int:
    return max((os.cpu_count() or 1) // processes, 1)
