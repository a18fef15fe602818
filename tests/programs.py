"""Compiled programs, kept between sessions and shared by the workers of one."""

import contextlib
import os
import time
import zlib
from pathlib import Path

from jax import __version_info__ as jax_release

KEPT_SECONDS = 14 * 24 * 3600
# LLVM takes no pains, its modules are not divided for further threads, and XLA's CPU backend emits
# its loops without MLIR, in a third of the time. From jax 0.11.1 on it knows no other way, and ends
# a process at the flag.
QUICK_COMPILER = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
} | ({"xla_cpu_use_fusion_emitters": False} if jax_release < (0, 11, 1) else {})


def as_flags(options: dict[str, object]) -> str:
    """Returns options of XLA's compiler as the variable `XLA_FLAGS` holds them."""
    return " ".join(f"--{name}={str(value).lower()}" for name, value in options.items())


class Programs:
    """JAX's cache of one worker, which follows the folder of kept programs and adds to it.

    JAX writes entries in place, so processes must not share a folder while they run. Each worker
    has its own, and exchanges what is complete with the kept folder between tests.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        self.folder, self.kept = folder, kept
        self._seen: dict[Path, int] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def exchange(self) -> None:
        """Copies the entries that one of the folders lacks, if one has changed."""
        for source, target in ((self.kept, self.folder), (self.folder, self.kept)):
            changed = source.stat().st_mtime_ns
            if self._seen.get(source) != changed:
                copy_missing(source, target)
                self._seen[source] = changed

    def remove_old(self) -> None:
        """Removes what was compiled two weeks ago from the kept programs."""
        for entry in self.kept.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > KEPT_SECONDS:
                    entry.unlink()


def copy_missing(source: Path, target: Path) -> None:
    """Copies complete cache entries that `target` lacks; each appears by a rename."""
    there = {entry.name for entry in os.scandir(target)}
    for name in (entry.name for entry in os.scandir(source)):
        if name.endswith("-cache") and name not in there:
            content = (source / name).read_bytes()
            if is_complete(content):
                partial_copy = target / f"{name}.{os.getpid()}"
                partial_copy.write_bytes(content)
                partial_copy.replace(target / name)


def is_complete(entry: bytes) -> bool:
    """Whether the process that wrote an entry finished it; entries are compressed by zlib."""
    try:
        zlib.decompress(entry)
    except zlib.error:
        return False
    return True
