"""Environments of the peers that benchmarks measure: made once, kept in the cache folder."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillbox.devices.setup import compilation_cache_folder

# Name and requirements of environments that several benchmarks share.
TORCH = (
    "torch",
    *("--index-url", "https://download.pytorch.org/whl/cpu"),
    *("torch", "torchvision", "numpy"),
)
KERAS = ("keras", "keras-hub==0.32.*", "tensorflow==2.21.*", "jax==0.10.*")


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
    for words in _ways(requirements):
        print(f"{name}: installing {' '.join(words)} into {folder}", file=sys.stderr)
        reason = _failure(folder, python, words)
        if reason is None:
            ready.touch()
            return python
        print(f"{name}: that failed: {reason}", file=sys.stderr)
    print(f"{name}: not measured, since it cannot be installed", file=sys.stderr)
    return None


def _ways(requirements: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Returns requirements, and without their index if they have one: it may be out of reach."""
    ways = [requirements]
    if requirements[0] == "--index-url":
        ways.append(requirements[2:])
    return ways


def _failure(folder: Path, python: Path, words: tuple[str, ...]) -> str | None:
    """Makes an environment; returns why it cannot be used, None if it can."""
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *words],
    ]
    if "torchvision" in words:
        # The operators of torchvision load only beside the PyTorch that they are built for.
        commands.append([str(python), "-c", "import torchvision"])
    for command in commands:
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return None


def ask_peer(
    python: Path,
    program: str,
    words: tuple[str, ...] = (),
    *,
    timeout: float | None = None,
    **arrays: NDArray[Any],
) -> Any:  # noqa: ANN401
    """Returns the JSON that a program of this folder prints, called with a file of `arrays`.

    Args:
        python: interpreter of the peer.
        program: name of the file.
        words: arguments before the path of the `.npz` file.
        timeout: seconds; None: no limit.
        arrays: content of the file, by name.

    Raises:
        subprocess.TimeoutExpired: the program takes longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set.npz"
        np.savez(path, **arrays)
        command = [str(python), str(Path(__file__).with_name(program)), *words, str(path)]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=timeout
        )
    return json.loads(done.stdout)
