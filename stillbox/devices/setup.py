"""Settings of a process that are made before the first array."""

import contextlib
import gc
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from stillbox import __version__
from stillbox.devices.allocator import keep_freed_memory
from stillbox.experiment import schema


def prepare_process() -> None:
    """Makes the settings of every command that runs a compiled program."""
    use_compilation_cache()
    keep_freed_memory()


def compilation_cache_folder() -> Path:
    """Returns the folder of compiled programs; `STILLBOX_CACHE` moves it."""
    if base := os.environ.get("STILLBOX_CACHE"):
        return Path(base) / "xla"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stillbox" / "xla"


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk for later starts, if the folder can be made.

    `JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS` takes precedence over the threshold set here.
    """
    _cache_in(compilation_cache_folder())
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # Short enough for the program that prepares kernels for detection.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def use_cache_of(settings: schema.Devices) -> None:
    """Moves the cache to `program_cache`, and limits its size to `program_cache_gib`.

    A cache that `use_compilation_cache` has not set up is left as it is.
    """
    default = compilation_cache_folder()
    folder = Path(settings.program_cache) if settings.program_cache else default
    if _current_cache() == str(default) != str(folder):
        _cache_in(folder)
        # JAX opens a cache at its first use and keeps it.
        compilation_cache.reset_cache()
    if _current_cache() == str(folder):
        # Another process may remove programs at the same time.
        with contextlib.suppress(OSError):
            prune(folder, int(settings.program_cache_gib * 2**30))


def _current_cache() -> str | None:
    folder: str | None = getattr(jax.config, "jax_compilation_cache_dir")  # noqa: B009 - types lack it
    return folder


def _cache_in(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))


def prune(folder: Path, limit: int) -> None:
    """Removes the programs in `folder` that were used least recently, down to `limit` bytes."""
    files = [(path, path.stat()) for path in folder.glob("*-cache")]
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
