"""What has to be set before the first array is made."""

import os
import platform
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from stillbox import __version__


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
