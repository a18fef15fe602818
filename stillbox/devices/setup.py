"""What has to be set before the first array is made."""

import ctypes
import os
import platform
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from stillbox import __version__

# Numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def prepare_process() -> None:
    """Does what every command does that runs a compiled program."""
    use_compilation_cache()
    keep_freed_memory()


def compilation_cache_folder() -> Path:
    """Returns the folder of compiled programs; `STILLBOX_CACHE` moves it."""
    base = os.environ.get("STILLBOX_CACHE")
    if base:
        return Path(base) / "xla"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stillbox" / "xla"


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that the second start of a command is a warm one.

    A folder that cannot be written to is no reason to stop: the program is compiled again.
    """
    folder = compilation_cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def keep_freed_memory() -> bool:
    """Makes the C library keep memory that was freed, for the next step to take; False if it can't.

    A step on the CPU takes and frees its temporary arrays, a gigabyte or more, and a batch's images
    are no smaller. Handed back to the system, every page is faulted in anew in the next step:
    5 to 9 % of a step here (benchmarks/README.md), more where others use the machine too.

    Whoever has tuned the allocator by the environment is left alone.
    """
    tuned = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if tuned or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    # -1 never trims; nothing may be mapped by itself, for that goes back to the system when freed.
    return bool(library.mallopt(_M_TRIM_THRESHOLD, -1) and library.mallopt(_M_MMAP_MAX, 0))


def versions() -> dict[str, str]:
    """Returns the versions of whatever a trained number may depend on."""
    return {
        "stillbox": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "flax": metadata.version("flax"),
        "optax": metadata.version("optax"),
        "numpy": np.__version__,
        "platform": jax.default_backend(),
    }
