"""Opens weights of any kind."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stillbox.checkpoints.array_files import SafetensorsFile, read_npz_weights
from stillbox.checkpoints.files import MAX_JSON_BYTES, list_folder, refuse_other_content
from stillbox.checkpoints.graphs.tensorflow import GraphConstants
from stillbox.checkpoints.graphs.tfjs import MODEL_JSON, TfjsModel
from stillbox.checkpoints.graphs.tflite import TfliteModel
from stillbox.checkpoints.name_tables.rules import Library, Scope
from stillbox.checkpoints.packed import find_model
from stillbox.checkpoints.pretrained import MissingWeightsError, resolve_weights
from stillbox.checkpoints.tf1 import Tf1Checkpoint, is_table
from stillbox.checkpoints.tf2 import OBJECT_GRAPH, Tf2Checkpoint
from stillbox.checkpoints.torch_file import TorchFile
from stillbox.errors import UserError, nearest
from stillbox.experiment import schema
from stillbox.experiment.known_weights import advise_weights
from stillbox.printing import printable_line
from stillbox.untrusted import open_untrusted, read_untrusted

_READABLE = (
    "a checkpoint's prefix, an .npz, .safetensors, .pth, .pt, .pb or .tflite file, a SavedModel's "
    "folder, the model.json of TensorFlow.js, or a stillbox model directory"
)
_READERS: Mapping[str, Callable[[Path], Mapping[str, np.ndarray]]] = {
    ".npz": read_npz_weights,
    ".safetensors": SafetensorsFile,
    ".pth": TorchFile,
    ".pt": TorchFile,
    ".pb": GraphConstants,
    ".json": TfjsModel,
    ".tflite": TfliteModel,
}
_LIBRARIES: Mapping[str, Library] = {".pth": "torch", ".pt": "torch", ".pb": "tensorflow"}
_SAVED_MODEL = "saved_model.pb"


@dataclass(frozen=True)
class Weights:
    """Named arrays, read on access."""

    path: str
    """The file, prefix or folder that they are read from."""
    arrays: Mapping[str, np.ndarray]
    """By a framework's name, or by our own path."""
    library: Library | None = None
    """The framework, if the kind of file tells."""
    find: Callable[[str], str] = str
    """Returns the name in `arrays` of what has several names, or else the name itself."""
    departure: str = ""
    """Where a graph is first another model's than the one that it was compared with."""


def open_weights(
    path: str | Path,
    *,
    prefer_ema: bool = False,
    model: schema.Model | None = None,
    scope: Scope | None = None,
) -> Weights:
    """Opens weights of any kind.

    `path` is an `.npz`, `.safetensors`, `.pth` or `.pt` file; the prefix of a TF1 or TF2 checkpoint
    or any of its files; a frozen graph or SavedModel (`.pb`), `model.json` of TensorFlow.js or a
    `.tflite` file; a folder with one of these, or with folders `checkpoint` or `saved_model`; a
    stillbox model directory (its best checkpoint, or else its newest), one checkpoint in it, or a
    packed model; or the name of downloaded weights. `prefer_ema` takes moving averages from a model
    directory; in TF1 files they have own names. `model` and `scope` are for advice.

    Raises:
        UserError: there is nothing, or nothing readable, under that path.
    """
    path = resolve_weights(path)
    if path.is_file():
        refuse_other_content(path)
    checkpoint = find_model(path)
    if checkpoint:
        return Weights(str(checkpoint.folder), checkpoint.parameters(prefer_ema=prefer_ema))
    path = _find_in_folder(path) if path.is_dir() else path
    prefix = _checkpoint_prefix(path)
    if prefix:
        return _open_checkpoint(prefix)
    if not path.is_file():
        raise _missing(path, model, scope)
    if path.suffix in _READERS:
        return Weights(str(path), _READERS[path.suffix](path), _LIBRARIES.get(path.suffix))
    raise _unreadable(path)


def _open_checkpoint(prefix: str) -> Weights:
    checkpoint = Tf1Checkpoint(prefix)
    if OBJECT_GRAPH not in checkpoint:
        return Weights(prefix, checkpoint, "tensorflow")
    objects = Tf2Checkpoint(checkpoint)
    return Weights(prefix, objects, "keras", objects.find)


def _find_in_folder(path: Path) -> Path:
    """Returns the checkpoint in a folder, or else the graph, which may lack variables."""
    prefix = _prefix_in_folder(path)
    if prefix is not None:
        return prefix
    graphs = (_SAVED_MODEL, "frozen_inference_graph.pb", MODEL_JSON)
    for name in ("checkpoint", *graphs, "saved_model"):
        inside = path / name
        if inside.is_dir():
            return _find_in_folder(inside)
        if name in graphs and inside.is_file():
            return inside
    models = sorted(path.glob("*.tflite"))
    if len(models) == 1:
        return models[0]
    fix = f"it holds {list_folder(path)}"
    raise UserError("the folder holds no weights", where=str(path), fix=fix)


def _prefix_in_folder(path: Path) -> Path | None:
    """Returns the newest checkpoint by TensorFlow's `checkpoint` file, or else the only one."""
    state = path / "checkpoint"
    if state.is_file():
        # Names of files need not be UTF-8.
        text = os.fsdecode(read_untrusted(state, most=MAX_JSON_BYTES))
        named = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.MULTILINE)
        if named:
            # Often an absolute path of another machine: only the name counts.
            prefix = path / re.split(r"[/\\]", named[1])[-1]
            if Path(f"{prefix}.index").is_file():
                return prefix
    prefixes = sorted(Path(str(entry).removesuffix(".index")) for entry in path.glob("*.index"))
    if len(prefixes) > 1:
        names = printable_line(", ".join(prefix.name for prefix in prefixes))
        problem = f"the folder holds {len(prefixes)} checkpoints: {names}"
        raise UserError(problem, where=str(path), fix=f"say which, for example {prefixes[-1]}")
    return prefixes[0] if prefixes else None


def _checkpoint_prefix(path: Path) -> str | None:
    """Returns the prefix of a checkpoint, given by itself, one of its files, or a SavedModel."""
    variables = path.parent / "variables" / "variables"
    if path.name == _SAVED_MODEL and Path(f"{variables}.index").is_file():
        return str(variables)
    prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", str(path))
    if Path(prefix + ".index").is_file():
        return prefix
    if prefix != str(path) and path.is_file():
        fix = f"copy it to where {path.name} lies"
        raise UserError("the checkpoint's index is missing", where=prefix + ".index", fix=fix)
    return None


def _missing(path: Path, model: schema.Model | None, scope: Scope | None) -> UserError:
    """Returns the error for a path without anything: a misspelt one, or weights to be fetched."""
    names: list[str] = []
    if path.parent.is_dir():
        names = [
            entry.name.removesuffix(".index")
            for entry in path.parent.iterdir()
            if entry.is_dir() or entry.suffix in (*_READERS, ".index")
        ]
    close = nearest(path.name, names)
    fixes = [close] if close.startswith("did you mean") else []
    fixes += filter(None, [advise_weights(str(path), model, scope or "")])
    fix = "; or ".join(fixes) or f"give {_READABLE}; `stillbox weights list` names what can be had"
    return MissingWeightsError("there are no such weights", where=str(path), fix=fix)


def _unreadable(path: Path) -> UserError:
    with open_untrusted(path, most=None) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
        if is_table(file.read()):
            return UserError(
                "this is a checkpoint in TensorFlow's format V1 (one file), which is not supported",
                where=str(path),
                fix="save it once with TensorFlow 1.x: tf.train.Saver(write_version=2)",
            )
    problem = f"weights of type {path.suffix or 'unknown'!r} cannot be read"
    return UserError(problem, where=str(path), fix=f"give {_READABLE}")
