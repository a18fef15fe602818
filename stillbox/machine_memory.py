"""Memory of the machine, or of the container or job if that is less."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from stillbox.system import installed_memory


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
    return min([installed_memory(), *_groups(_limit_of_group)])


def _free_on_machine() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # Elsewhere: half of all memory, a conservative estimate.
    return installed_memory() // 2


def _groups(
    measure: Callable[[Path, _Names], int],
    membership: Path = Path("/proc/self/cgroup"),
    root: Path = Path("/sys/fs/cgroup"),
) -> Iterator[int]:
    """Measures the control group and its ancestors, each of which may have a limit."""
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names, base = (_V1, root / "memory") if controllers else (_V2, root)
        innermost = base / path.lstrip("/")
        for group in (innermost, *innermost.parents):
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
