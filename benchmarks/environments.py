"""Environments of the peers that benchmarks measure: made once, kept in the cache folder."""

import subprocess
import sys
from pathlib import Path

from stillbox.devices.setup import compilation_cache_folder


def peer_python(name: str, *requirements: str) -> Path | None:
    """Returns the interpreter of an environment with `requirements`; None if it cannot be had.

    Args:
        name: of the environment, which is made at its first use.
        requirements: what pip installs into it, with its options.
    """
    folder = compilation_cache_folder().with_name("peers") / name
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    print(f"{name}: installing {' '.join(requirements)} into {folder}", file=sys.stderr)
    pip = [str(python), "-m", "pip", "install", "--quiet", *requirements]
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], pip):
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{name}: not measured, since it cannot be installed: {reason}", file=sys.stderr)
            return None
    ready.touch()
    return python
