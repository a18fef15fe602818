"""Reports what this machine has, and versions on it that do not work together."""

import os
import platform
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import jax

from stillbox import __version__
from stillbox.devices.setup import compilation_cache_folder, fault_of_folder
from stillbox.exporting.saved_model.format import known_bad
from stillbox.printing import size_text

_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "numpy",
    "opencv-python-headless",
    "hotcoco",
    "tensorflow",
    "tensorflow-cpu",
    "ai-edge-litert",
    "onnx",
    "onnxruntime",
    "openvino",
    "libtpu",
)


@dataclass(frozen=True)
class Examination:
    """Facts about this machine and problems, in the order in which they are printed."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Each with its remedy."""

    def text(self) -> str:
        """Returns the whole report."""
        verdict = self.problems or ["nothing wrong was found"]
        return "\n".join([*self.lines, "", *(f"=> {line}" for line in verdict)])


def examine() -> Examination:
    """Examines this machine. Starts the accelerator, changes nothing."""
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    devices, problems = _devices()
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    lines = [
        f"stillbox {__version__}, Python {platform.python_version()}, {platform.platform()}",
        *(f"  {name} {version}" for name, version in versions.items()),
        f"devices: {devices}",
        f"processors: {os.cpu_count()}",
        f"memory: {size_text(pages * size)} on the host",
        f"compiled programs are kept in {compilation_cache_folder()}",
    ]
    problems += _cache_problem(compilation_cache_folder())
    return Examination(lines, bad_pairs(versions) + _python_problem() + problems)


def _cache_problem(folder: Path) -> list[str]:
    fault = fault_of_folder(folder) if folder.is_dir() else ""
    return [f"{folder}: {fault}: remove it; no compiled program is kept there"] if fault else []


def bad_pairs(versions: dict[str, str]) -> list[str]:
    """Returns the pairs of versions that are known not to work together."""
    problems = []
    tensorflow = versions.get("tensorflow") or versions.get("tensorflow-cpu")
    if tensorflow and known_bad(versions.get("jax", "0"), tensorflow):
        problems.append(
            f"jax {versions['jax']} writes SavedModels that TensorFlow {tensorflow} cannot load "
            "(top_k becomes vhlo.composite_v2): use jax 0.10.0, or TensorFlow 2.22 or newer"
        )
    if versions.get("jax") != versions.get("jaxlib"):
        problems.append(
            f"jax {versions.get('jax')} and jaxlib {versions.get('jaxlib')} are not of one release"
        )
    return problems


def _python_problem() -> list[str]:
    if (3, 11) <= sys.version_info < (3, 14):
        return []
    return [f"Python {platform.python_version()} is not supported: use 3.11, 3.12 or 3.13"]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> tuple[str, list[str]]:
    """Returns the devices of jax, and problems of starting them."""
    try:
        devices = jax.devices()
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        return "none", [f"jax cannot start its devices: {reason}"]
    kinds = sorted({f"{device.platform} ({device.device_kind})" for device in devices})
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    memory = f", {size_text(limit)} each" if limit else ""
    return f"{len(devices)} x {', '.join(kinds)}{memory}", []
