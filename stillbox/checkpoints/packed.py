"""A trained model in one file or folder: weights, experiment and label map, and nothing else.

A `.stillbox` file is a `.safetensors`; its metadata hold the rest. A packed folder is a checkpoint
without the state of the optimizer.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from stillbox.checkpoints.array_files import SafetensorsFile
from stillbox.checkpoints.checkpoint import (
    EXPERIMENT,
    LABEL_MAP,
    MANIFEST,
    VERSIONS,
    WRITTEN,
    Arrays,
    Checkpoint,
    write_checkpoint,
)
from stillbox.checkpoints.files import Checksums, refuse_other_content, replacing, write_durably
from stillbox.checkpoints.model_directory import (
    CheckpointChoice,
    ModelDirectory,
    is_model_directory,
)
from stillbox.errors import UserError
from stillbox.experiment.schema import Experiment
from stillbox.experiment.yaml_config import CHECKPOINTS, from_stored, to_yaml, without_own_paths
from stillbox.object_storage import url_of
from stillbox.printing import size_text
from stillbox.records.files import new_folder
from stillbox.references import Parameter
from stillbox.textformat.yaml_tree import read_text_file

SUFFIX = ".stillbox"
_FORMAT = "1"
_AGAIN = "copy the file again, or pack the model again with stillbox pack"


class PackedModel:
    """Reads a `.stillbox` file; else as `Checkpoint`.

    Raises:
        UserError: it is damaged, no such file, or one of a newer format.
    """

    def __init__(self, path: Path) -> None:
        refuse_other_content(path)
        self.folder, self._arrays = path, SafetensorsFile(path)
        metadata = self._arrays.metadata
        if metadata.get("stillbox") != _FORMAT:
            written = metadata.get("stillbox")
            problem = f"it has format {written}, this version reads {_FORMAT}"
            problem = problem if written else "this is no packed model of stillbox"
            fix = "use a newer version of stillbox" if written else _AGAIN
            raise UserError(problem, where=str(path), fix=fix)
        try:
            self.step, self._checksum = int(metadata["step"]), metadata["sha256"]
            self.experiment, self.label_map = metadata["experiment"], metadata["label_map"]
        except (KeyError, ValueError) as error:
            problem = f"what the file says of its model is damaged: {error}"
            raise UserError(problem, where=str(path), fix=_AGAIN) from error

    sections = ("params", "stats")

    def read_experiment(self, say: Callable[[str], None] = lambda line: None) -> Experiment:
        """Returns the experiment; see `from_stored`."""
        return from_stored(self.experiment, str(self.folder), say)

    def parameters(self, *, prefer_ema: bool = False) -> Arrays:
        """Returns parameters and moving statistics by path, as evaluation uses them.

        Raises:
            UserError: they are not those that were written.
        """
        arrays = {name: self._arrays[name] for name in self._arrays}
        if array_digest(arrays) != self._checksum:
            raise UserError("the weights are damaged", where=str(self.folder), fix=_AGAIN)
        return arrays


@dataclass(frozen=True)
class Packed:
    """What `pack_model` wrote."""

    target: Path
    step: int
    weights: int
    """Bytes of the arrays."""
    size: int
    """Bytes of all files."""

    def render(self) -> str:
        """Returns a line of text."""
        more = 100 * (self.size / self.weights - 1)
        size = f"{size_text(self.size)}, {more:.1f} % more than its weights"
        return f"{self.target}: the model of step {self.step}, {size}"


def find_model(path: Path, which: CheckpointChoice = "best") -> Checkpoint | PackedModel | None:
    """Opens what a path names: a model directory, one of its checkpoints, or a packed model.

    Args:
        which: checkpoint of a model directory; the others have one.

    Returns:
        None if the path names nothing of the kind.

    Raises:
        UserError: it is damaged, or has no such checkpoint.
    """
    if is_model_directory(path):
        return ModelDirectory.open(path).checkpoint(which)
    if is_packed(path):
        model: Checkpoint | PackedModel = PackedModel(path)
    elif (path / MANIFEST).is_file():
        model = Checkpoint(path)
    else:
        return None
    if isinstance(which, int) and model.step != which:
        problem = f"this is the model of step {model.step}, not of {which}"
        raise UserError(problem, where=str(path), fix="give the model directory, or no step")
    return model


def open_model(path: Path, which: CheckpointChoice = "best") -> Checkpoint | PackedModel:
    """Opens a trained model; see `find_model`.

    Raises:
        UserError: the path names none, it is damaged, or it has no such checkpoint.
    """
    return find_model(path, which) or ModelDirectory.open(path).checkpoint(which)


def results_folder(
    source: str | Path | Experiment, weights: str | Path | None = None
) -> Path | None:
    """Returns the folder for results: the model directory or export; None: the source is none."""
    if weights or isinstance(source, Experiment) or url_of(source):
        return None
    path = Path(source)
    if path.parent.name == CHECKPOINTS and is_model_directory(path.parent.parent):
        return path.parent.parent
    return None if is_packed(path) else path


def is_packed(path: Path) -> bool:
    """Whether a packed model's file is at the path."""
    return path.suffix == SUFFIX and path.is_file()


def pack_model(
    source: Path, target: Path, *, step: CheckpointChoice = "best", overwrite: bool = False
) -> Packed:
    """Writes a trained model without the state of its training and without its records.

    Where evaluation uses moving averages, these are the weights. Paths into the model directory are
    left out of the experiment. `source` is a model directory or one of its checkpoints, `target` a
    file with a name that ends in `.stillbox`, or a folder. The checkpoint `best` is the newest if
    none was marked.

    Raises:
        UserError: there is no such model; the target exists, or is a folder of something else; or
            the disk takes no more.
    """
    model = open_model(source, step)
    if not isinstance(model, Checkpoint):
        raise UserError("this model is packed already", where=str(source), fix="copy the file")
    _check_target(target, overwrite=overwrite)
    if not target.absolute().parent.is_dir():
        fix = f"mkdir -p {target.parent}"
        raise UserError("there is no such folder", where=str(target.parent), fix=fix)
    stored = from_stored(model.experiment, str(model.folder / EXPERIMENT))
    experiment = without_own_paths(stored)
    sections = {name: model.read(name) for name in PackedModel.sections if name in model.sections}
    if experiment.evaluation.use_ema and "ema" in model.sections:
        average = model.read("ema")
        for arrays in sections.values():
            arrays |= {path: average[path] for path in arrays if path in average}
    write = _write_file if target.suffix == SUFFIX else _write_folder
    size = write(target, model, to_yaml(experiment), sections)
    weights = sum(array.nbytes for arrays in sections.values() for array in arrays.values())
    return Packed(target, model.step, weights, size)


def _check_target(target: Path, *, overwrite: bool) -> None:
    """Refuses what must not be replaced: a file or a folder that is no packed model, too."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    in_run = target.absolute().parent.name == CHECKPOINTS
    if target.is_dir() and (in_run or not (target / MANIFEST).is_file()):
        problem = "this folder is no packed model, and is not replaced"
        raise UserError(problem, where=str(target), fix="choose another name")
    if not overwrite:
        fix = f"choose another name, or add {Parameter('overwrite')}"
        raise UserError("it exists", where=str(target), fix=fix)
    if not target.is_dir() and not _is_packed(target):
        problem = "this file is no packed model, and is not replaced"
        raise UserError(problem, where=str(target), fix="choose another name")


def _is_packed(path: Path) -> bool:
    try:
        return "stillbox" in SafetensorsFile(path).metadata
    except UserError:
        return False


def _write_file(
    target: Path, model: Checkpoint, experiment: str, sections: Mapping[str, Arrays]
) -> int:
    arrays = {
        path: np.asarray(array, order="C")
        for section in sections.values()
        for path, array in section.items()
    }
    metadata = {
        "stillbox": _FORMAT,
        "step": str(model.step),
        "experiment": experiment,
        "label_map": model.label_map,
        "versions": read_text_file(model.folder / VERSIONS, fix=WRITTEN, inside=model.folder),
        "sha256": array_digest(arrays),
    }
    content = save(arrays, metadata)
    with replacing(target) as unfinished:
        write_durably(unfinished, content)
    return len(content)


def _write_folder(
    target: Path, model: Checkpoint, experiment: str, sections: Mapping[str, Arrays]
) -> int:
    with new_folder(target, written=partial(Checksums.written, manifest=MANIFEST)) as folder:
        write_durably(folder / EXPERIMENT, experiment.encode())
        copies = [model.folder / name for name in (LABEL_MAP, VERSIONS)]
        write_checkpoint(folder, model.step, sections, {}, copies)
        return sum(file.stat().st_size for file in folder.iterdir())


def array_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
