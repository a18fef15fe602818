"""Settings of a process that are made before the first array, and the most memory it has taken."""

import contextlib
import gc
import math
import os
import platform
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import jax

from stillbox import __version__, numerals
from stillbox.devices.announcing import say_aside
from stillbox.devices.process import keep_freed_memory, keep_fusions_whole
from stillbox.errors import UserError
from stillbox.printing import size_text
from stillbox.records.byte_source import cache_folder
from stillbox.system import peak_bytes, user_id


@dataclass(frozen=True)
class PeakMemory:
    """The highest number of bytes in use."""

    nbytes: int
    """On the device that has taken most, or of the process."""
    device: str
    """Name of that device; empty where devices keep no count and the process was measured."""

    def describe(self) -> str:
        """Returns a sentence with the size and what it was measured on."""
        size = size_text(self.nbytes)
        if self.device:
            return f"peak memory on {self.device}: {size}"
        return f"peak memory of the process: {size} resident (its devices keep no count)"


def peak_memory() -> PeakMemory:
    """Returns the peak since the process began, of its devices or else of the process."""
    peaks = [
        PeakMemory(int(stats["peak_bytes_in_use"]), str(device))
        for device in jax.local_devices()
        if "peak_bytes_in_use" in (stats := device.memory_stats() or {})
    ]
    if peaks:
        return max(peaks, key=lambda peak: peak.nbytes)
    return PeakMemory(peak_bytes(), "")


# Name and key of a program, as jax names its file.
_PROGRAM = re.compile(r".+-[0-9a-f]{64}-cache")


def prepare_process() -> None:
    """Makes the settings of every command that runs a compiled program."""
    keep_fusions_whole()
    use_compilation_cache()
    keep_freed_memory()


def compilation_cache_folder() -> Path:
    """Returns the folder of compiled programs; `STILLBOX_CACHE` moves it.

    Loading a program runs it. So the folder comes from the user's environment, and no experiment
    names it.
    """
    base = os.environ.get("STILLBOX_CACHE")
    return (Path(base) if base else cache_folder()) / "xla"


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk for later starts, in a folder that is the user's alone.

    Above `STILLBOX_CACHE_GIB` gibibytes those that were used least recently are removed.
    `JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS` takes precedence over the threshold set here.

    Raises:
        UserError: `STILLBOX_CACHE_GIB` is no number above 0.
    """
    folder, limit = compilation_cache_folder(), _most_bytes()
    with contextlib.suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if fault := fault_of_folder(folder):
            say_aside(
                f"warning: {folder}: {fault}, so that no compiled program is read or kept there\n"
                f"  fix: remove it, or let STILLBOX_CACHE name another folder"
            )
        else:
            folder.chmod(0o700)
            jax.config.update("jax_compilation_cache_dir", str(folder))
            # Another process that starts may remove the same programs.
            prune(folder, limit)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # Short enough for the program that prepares kernels for detection.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def fault_of_folder(folder: Path) -> str:
    """Returns why others could put programs into a folder; empty if they cannot."""
    if (user := user_id()) is None:
        return ""
    # A link of somebody else may lead to a folder of the user.
    status, name = folder.stat(), folder.lstat()
    if {status.st_uid, name.st_uid} != {user}:
        return "the folder belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write into the folder"
    if folder.parent.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        return "others can put another folder in its place"
    return ""


def _most_bytes() -> int:
    text = os.environ.get("STILLBOX_CACHE_GIB", "10")
    most = numerals.number(text) * 2**30
    if not 0 < most < math.inf:
        raise UserError(
            f"{text!r} is no size of a folder in gibibytes",
            where="STILLBOX_CACHE_GIB",
            fix="give a number above 0, or unset it: 10 is the default",
        )
    return int(most)


def prune(folder: Path, limit: int) -> None:
    """Removes the programs in `folder` that were used least recently, down to `limit` bytes.

    Files that jax has not named are left alone, and so are links.
    """
    programs = [path for path in folder.iterdir() if _PROGRAM.fullmatch(path.name)]
    files = [(path, status) for path in programs if stat.S_ISREG((status := path.lstat()).st_mode)]
    # A file system may not record when a file is read.
    files.sort(key=lambda file: max(file[1].st_atime, file[1].st_mtime))
    excess = sum(status.st_size for _, status in files) - limit
    for path, status in files:
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= status.st_size


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pauses Python's collector of reference cycles.

    Tracing a program makes millions of objects that stay; to walk through them again and again was
    a fifth of the time (benchmarks/README.md).
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def versions() -> dict[str, str]:
    """Returns the versions that the numbers of a training run may depend on."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "stillbox": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "platform": jax.default_backend(),
    }
