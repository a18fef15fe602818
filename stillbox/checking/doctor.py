"""Reports what this machine has and lacks, version pairs that fail, and files that changed on disk.

The files of model directories and exports are compared with the checksums in their manifests.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax

from stillbox import __version__
from stillbox.checking.accelerators import idle_accelerators, plugins_heard
from stillbox.checking.installed import extra_lines, weight_lines
from stillbox.checkpoints import checkpoint
from stillbox.checkpoints.checkpoint import Checkpoint
from stillbox.checkpoints.files import Checksums, list_folder, read_manifest
from stillbox.checkpoints.model_directory import CHECKPOINTS, ModelDirectory, is_model_directory
from stillbox.checkpoints.packed import PackedModel, is_packed
from stillbox.devices.setup import compilation_cache_folder, fault_of_folder
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.exporting import manifest as export
from stillbox.exporting.manifest import Manifest
from stillbox.printing import count_text, printable_line, size_text
from stillbox.system import installed_memory

_PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "numpy", "opencv-python-headless", "hotcoco"),
    *("tensorflow", "tensorflow-cpu", "ai-edge-litert", "onnx", "onnxruntime", "openvino"),
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
    problems = bad_pairs(versions)
    if not (3, 11) <= sys.version_info < (3, 15):
        version = platform.python_version()
        problems.append(f"Python {version} is not supported: use one from 3.11 to 3.14")
    devices, faults = _devices()
    problems += faults
    folder = compilation_cache_folder()
    if folder.is_dir() and (fault := fault_of_folder(folder)):
        problems.append(f"{folder}: {fault}: remove it; no compiled program is kept there")
    lines = [
        f"stillbox {__version__}, Python {platform.python_version()}, {platform.platform()}",
        *(f"  {name} {version}" for name, version in versions.items()),
        f"devices: {devices}",
        f"processors: {os.cpu_count()}",
        f"memory: {size_text(installed_memory())} on the host",
        f"compiled programs are kept in {folder}",
        *extra_lines(),
        *weight_lines(),
    ]
    return Examination(lines, problems)


def bad_pairs(versions: dict[str, str]) -> list[str]:
    """Returns the pairs of versions that are known not to work together."""
    jax_version, jaxlib = versions.get("jax"), versions.get("jaxlib")
    problem = f"jax {jax_version} and jaxlib {jaxlib} are not of one release"
    return [problem] if jax_version != jaxlib else []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> tuple[str, list[str]]:
    """Returns the devices of jax, and problems of starting them."""
    with plugins_heard() as said:
        try:
            devices = jax.devices()
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            return "none", [f"jax cannot start its devices: {reason}"]
    idle = idle_accelerators({device.platform for device in devices}, said)
    kinds = sorted({f"{device.platform} ({device.device_kind})" for device in devices})
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    memory = f", {size_text(limit)} each" if limit else ""
    return f"{len(devices)} x {', '.join(kinds)}{memory}", idle


_AGAIN = "copy it again from its source"


class _Part(NamedTuple):
    """A folder with a manifest."""

    folder: Path
    manifest: str
    read: Callable[[Path], object]
    """Raises UserError if the manifest has fields without a sensible value."""


def examine_folder(folder: Path) -> Examination:
    """Examines a model directory, one checkpoint of it, a packed model, or an export.

    Every file that a manifest covers has a line: it is `ok`, `changed` or `missing`, or `unknown`
    if there is no checksum of it. Nothing is changed.

    Raises:
        UserError: the folder is none of these.
    """
    examination, parts = Examination(), list(_parts(folder))
    if is_packed(folder):
        _examine_packed(folder, examination)
    elif is_model_directory(folder):
        _examine_beside(folder, examination)
    elif not parts:
        problem = "this is neither a model directory nor an export"
        fix = f"it holds {list_folder(folder)}" if folder.is_dir() else "give such a folder"
        raise UserError(problem, where=str(folder), fix=fix)
    for part in parts:
        _examine_part(part, folder, examination)
    return examination


def _examine_packed(path: Path, examination: Examination) -> None:
    try:
        model = PackedModel(path)
        arrays = count_text(len(model.parameters()), "array")
        examination.lines.append(_row("ok", f"{path}: the model of step {model.step}, {arrays}"))
    except UserError as error:
        examination.lines.append(_row("changed", str(path)))
        examination.problems.append(_sentence(error))


def _parts(folder: Path) -> Iterator[_Part]:
    checkpoints = [folder] if (folder / checkpoint.MANIFEST).is_file() else []
    exports = [folder / export.MANIFEST]
    if is_model_directory(folder):
        steps = ModelDirectory.open(folder).steps()
        checkpoints = [folder / CHECKPOINTS / str(step) for step in steps]
        # The default places of exports.
        exports += sorted(folder.glob(f"export/*/{export.MANIFEST}"))
    for place in checkpoints:
        yield _Part(place, checkpoint.MANIFEST, Checkpoint)
    for file in exports:
        if file.is_file():
            yield _Part(file.parent, export.MANIFEST, Manifest.read)


def _examine_beside(folder: Path, examination: Examination) -> None:
    """Examines the files of a model directory outside its checkpoints."""
    directory = ModelDirectory.open(folder)
    checkpoints = count_text(len(directory.steps()), "checkpoint")
    examination.lines.append(f"{folder}: a model directory, {checkpoints}")
    for name in (checkpoint.EXPERIMENT, checkpoint.LABEL_MAP, checkpoint.VERSIONS):
        state = "unknown" if (folder / name).is_file() else "missing"
        examination.lines.append(
            _row(state, f"{name} (a copy for people; checkpoints have their own)")
        )
    if (folder / export.MANIFEST).is_file():
        problem = f"{folder} is an export too, which would be run in place of the checkpoints"
        examination.problems.append(f"{problem}; move {export.MANIFEST} away")
    try:
        directory.best()
        read_history(folder / HISTORY, examination.problems.append)
    except UserError as error:
        examination.problems.append(_sentence(error))


def _examine_part(part: _Part, root: Path, examination: Examination) -> None:
    shown = part.folder.relative_to(root)
    checksums, wrong = Checksums(part.folder, None, part.manifest), []
    try:
        content = read_manifest(
            part.folder / part.manifest, problem=f"{part.manifest} cannot be read", fix=_AGAIN
        )
        checksums = Checksums.parse(content.get("checksums"), part.folder, part.manifest)
        examination.lines.append(_row("ok", str(shown / part.manifest)))
        if checksums.files is None:
            examination.lines.append("           written without checksums, by an earlier version")
    except UserError as error:
        state = "changed" if (part.folder / part.manifest).exists() else "missing"
        examination.lines.append(_row(state, str(shown / part.manifest)))
        examination.problems.append(_sentence(error))
    for name, state in checksums.states():
        examination.lines.append(_row(state, str(shown / name)))
        if state in ("changed", "missing"):
            wrong.append(f"{name} ({state})")
    if wrong:
        names = ", ".join(wrong)
        examination.problems.append(f"{part.folder}: not as they were written: {names}; {_AGAIN}")
    elif not examination.problems:
        try:
            part.read(part.folder)
        except UserError as error:
            examination.problems.append(_sentence(error))


def _row(state: str, name: str) -> str:
    # A name can hold control characters of a terminal.
    return f"  {state:8} {printable_line(name)}"


def _sentence(error: UserError) -> str:
    return ": ".join(filter(None, (error.where, error.what))) + f"; {error.fix or _AGAIN}"
