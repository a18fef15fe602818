"""Accelerators that a machine seems to have and that JAX does not have."""

import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stillbox.jax_internals import backend_errors


@dataclass(frozen=True)
class _Kind:
    """A kind of accelerator, and what it leaves on a machine."""

    title: str
    platforms: frozenset[str]
    """Names of JAX."""
    extra: str
    """The extra of stillbox that installs its package."""
    package: re.Pattern[str]
    devices: tuple[str, ...]
    """Patterns of paths, from the root."""
    drivers: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    """Programs of the driver."""
    hidden_by: str = ""
    """A variable that hides all devices if it is empty or -1."""


_KINDS = (
    _Kind(
        "NVIDIA GPU",
        frozenset({"cuda", "gpu"}),
        "cuda",
        re.compile(r"jax[-_]cuda\d+[-_](plugin|pjrt)"),
        ("dev/nvidia[0-9]*",),
        ("proc/driver/nvidia/version",),
        ("nvidia-smi",),
        "CUDA_VISIBLE_DEVICES",
    ),
    _Kind(
        "TPU",
        frozenset({"tpu"}),
        "tpu",
        re.compile("libtpu"),
        ("dev/accel[0-9]*", "dev/vfio/[0-9]*"),
    ),
)


@contextmanager
def plugins_heard() -> Iterator[list[str]]:
    """Collects what JAX logs about plug-ins that do not start, while it is entered."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            said.append(" ".join(f"{record.getMessage()} {error or ''}".split()))

    logger, listener = logging.getLogger("jax"), Listener(logging.WARNING)
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)


def idle_accelerators(
    platforms: Collection[str], said: Collection[str] = (), root: Path = Path("/")
) -> list[str]:
    """Returns a sentence about each kind of accelerator that is here and that JAX does not have.

    Args:
        platforms: names that devices of JAX have.
        said: what JAX has logged when it started them.
        root: the folder of `dev` and `proc`.
    """
    missing = [kind for kind in _KINDS if not kind.platforms & {*platforms}]
    return list(filter(None, (_sentence(kind, said, root) for kind in missing)))


def _sentence(kind: _Kind, said: Collection[str], root: Path) -> str:
    packages = [name for name in _installed() if kind.package.fullmatch(name)]
    devices = [str(path) for pattern in kind.devices for path in sorted(root.glob(pattern))]
    drivers = [str(path) for pattern in kind.drivers for path in root.glob(pattern)]
    drivers += [program for program in kind.programs if shutil.which(program)]
    here = [*packages[:1], *devices[:1], *drivers[:1]]
    if not here:
        return ""
    cause = _cause(kind, packages, devices, drivers, said)
    return f"{kind.title}: there is {' and '.join(here)}, and JAX has no such device: {cause}"


def _cause(
    kind: _Kind,
    packages: list[str],
    devices: list[str],
    drivers: list[str],
    said: Collection[str],
) -> str:
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted and not kind.platforms & {*wanted.split(",")}:
        return f"JAX_PLATFORMS is {wanted}; unset it"
    if not packages:
        return f"its package is not installed; install stillbox with '.[{kind.extra}]'"
    if kind.hidden_by and os.environ.get(kind.hidden_by) in ("", "-1"):
        return f"{kind.hidden_by} hides every device; unset it"
    if not devices and not drivers:
        paths = ", ".join(f"/{pattern}" for pattern in (*kind.devices, *kind.drivers))
        return f"this machine, or this container, has none of {paths}"
    if reason := _reason(kind, backend_errors(), said):
        return reason
    if not devices:
        return f"no file is /{kind.devices[0]}: give the container its devices"
    return "it did not start; JAX_DEBUG_LOG_MODULES=jax._src.xla_bridge shows why"


def _reason(kind: _Kind, errors: Mapping[str, str], said: Collection[str]) -> str:
    """Returns what JAX itself says about a kind that did not start."""
    reasons = [errors[name] for name in sorted(kind.platforms) if errors.get(name)]
    reasons += [line for line in said if kind.extra in line.lower() or kind.title.lower() in line]
    return " ".join(reasons[0].split()) if reasons else ""


def _installed() -> list[str]:
    names = (package.metadata["Name"] for package in metadata.distributions())
    return sorted({name.lower() for name in names if name})
