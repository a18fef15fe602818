"""Memory that is available to this process, and decoded images in it, up to a measured limit."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from stillbox.inputs.sample import Sample
from stillbox.printing import count_text, size_text


class _Names(NamedTuple):
    """File names of a version of Linux' control groups."""

    limit: str
    used: str
    page_cache: tuple[str, ...]
    """Lines of `memory.stat`: pages of files, which the kernel reclaims on demand."""


_V1 = _Names(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_V2 = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))


def available_memory() -> int:
    """Returns the free bytes of machine, container or job; the kernel reclaims the page cache."""
    return min([_free_on_machine(), *_groups(_free_in_group)])


def total_memory() -> int:
    """Returns the bytes of the machine, or of the container or job if that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_groups(_limit_of_group)])


def _free_on_machine() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # Elsewhere (macOS): half of all memory, a conservative estimate.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _groups(
    measure: Callable[[Path, _Names], int],
    membership: Path = Path("/proc/self/cgroup"),
    root: Path = Path("/sys/fs/cgroup"),
) -> Iterator[int]:
    """Measures the control group and its ancestors, each of which may have a limit."""
    lines = membership.read_text().splitlines() if membership.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names, base = (_V1, root / "memory") if controllers else (_V2, root)
        own = base / path.lstrip("/")
        for group in (own, *own.parents):
            if group.is_relative_to(base):
                yield measure(group, names)


def _limit_of_group(group: Path, names: _Names) -> int:
    try:
        return int((group / names.limit).read_text())
    except (OSError, ValueError):  # the group is not visible, or its limit is "max"
        return 2**63 - 1


def _free_in_group(group: Path, names: _Names) -> int:
    try:
        limit, used = (int((group / name).read_text()) for name in (names.limit, names.used))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # the group is not visible, or its limit is "max"
        return 2**63 - 1
    return max(limit - used + sum(int(stat.get(name, 0)) for name in names.page_cache), 0)


_MIB = 2**20
# Memory that the program, its compiled steps and its batches need to grow.
_RESERVED_SHARE = 0.2
_MIN_RESERVED = 2048 * _MIB
_MEASURE_EVERY = 64 * _MIB


class SampleCache:
    """Samples by record, up to a `limit` of bytes, by default a measured one. Nothing is evicted.

    Every epoch visits every record once, in another order: evicting the oldest would only lower the
    share of hits. A fifth of the memory that is free at the start, and at least 2 GiB, is reserved.
    Free memory is measured again while the cache grows, since other processes grow too.
    """

    def __init__(self, limit: int | None = None) -> None:
        free = available_memory()
        self._reserved = max(int(_RESERVED_SHARE * free), _MIN_RESERVED)
        self._measures = limit is None
        self.limit = max(free - self._reserved, 0) if limit is None else limit
        self.nbytes = 0
        self.full = False
        self._samples: dict[int, Sample] = {}
        self._measured_at = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._samples)

    def get(self, record: int) -> Sample | None:
        """Returns the sample of a record, if cached."""
        return self._samples.get(record)

    def add(self, record: int, sample: Sample) -> None:
        """Keeps a sample if there is room for it."""
        with self._lock:
            if self.full or record in self._samples:
                return
            if self.nbytes + sample.nbytes > self.limit or self._memory_is_short():
                self.full = True
                return
            self._samples[record] = sample
            self.nbytes += sample.nbytes

    def promise(self) -> str:
        """Returns a sentence about the limit."""
        return f"decoded images are kept in memory: {size_text(self.limit)} at most"

    def describe(self) -> str:
        """Returns a sentence about the content."""
        text = (
            f"{count_text(len(self), 'decoded image')} in memory, {size_text(self.nbytes)} of at "
            f"most {size_text(self.limit)}"
        )
        return f"{text}; full, the others are decoded again every epoch" if self.full else text

    def _memory_is_short(self) -> bool:
        """Returns whether less than the reserve is free; measured rarely."""
        if not self._measures or self.nbytes - self._measured_at < _MEASURE_EVERY:
            return False
        self._measured_at = self.nbytes
        return available_memory() < self._reserved
