"""One checkpoint: a self-contained folder.

Each section of the training state is an `.npz`; `checkpoint.json` lists the sections, holds
metadata and the checksum of every other file. The folder has copies of the experiment, the label
map and the versions. Loading compares these and the sections that it reads with their checksums.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stillbox.checkpoints.array_files import NpzFile, write_npz
from stillbox.checkpoints.files import (
    Checksums,
    read_manifest,
    sync_folder,
    write_durably,
    write_manifest,
)
from stillbox.errors import UserError, nearest
from stillbox.experiment.schema import Experiment
from stillbox.experiment.yaml_config import from_stored, place_paths
from stillbox.printing import count_text
from stillbox.records.label_map import MAX_LABEL_MAP_BYTES
from stillbox.textformat.yaml_tree import read_text_file
from stillbox.untrusted import read_untrusted

MANIFEST = "checkpoint.json"
BEST = "best.json"
EXPERIMENT, LABEL_MAP, VERSIONS = "experiment.yaml", "label_map.pbtxt", "versions.json"
WRITTEN = "give a folder that training wrote, whole"
_FORMAT = 1

Arrays = dict[str, np.ndarray]


def write_checkpoint(
    folder: Path,
    step: int,
    sections: Mapping[str, Arrays],
    metadata: Mapping[str, Any],
    copies: Iterable[Path] = (),
) -> None:
    """Fills an empty folder and waits until the disk has all of it."""
    for name, arrays in sections.items():
        write_npz(folder / f"{name}.npz", arrays)
    for source in copies:
        content = read_untrusted(source, most=MAX_LABEL_MAP_BYTES, inside=source.parent)
        write_durably(folder / source.name, content)
    manifest = {
        "format": _FORMAT,
        "step": step,
        "sections": {name: len(arrays) for name, arrays in sections.items()},
        "metadata": dict(metadata),
        "checksums": Checksums.of_folder(folder, MANIFEST).to_json(),
    }
    write_durably(folder / MANIFEST, write_manifest(manifest))
    sync_folder(folder)


def flatten_section(tree: object) -> Arrays:
    """Names the leaves of a pytree by their path: `0.trace.backbone.conv_0.kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    # An explicit transfer, which `jax.transfer_guard` allows.
    return {_leaf_name(path): np.asarray(jax.device_get(leaf)) for path, leaf in leaves}


def _leaf_name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "value"


class StoredExperiment:
    """The experiment and the label map of a model directory or a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def experiment(self) -> str:
        """The experiment as YAML."""
        return read_text_file(self.folder / EXPERIMENT, fix=WRITTEN, inside=self.folder)

    def read_experiment(self, say: Callable[[str], None] = lambda line: None) -> Experiment:
        """Returns the experiment, with the paths where its model directory is now."""
        stored = from_stored(self.experiment, str(self.folder / EXPERIMENT), say)
        return place_paths(stored, self.folder)

    @property
    def label_map(self) -> str:
        """The label map as text."""
        path, most = self.folder / LABEL_MAP, MAX_LABEL_MAP_BYTES
        return read_text_file(path, fix=WRITTEN, most=most, inside=self.folder)


class Checkpoint(StoredExperiment):
    """Reads one finished checkpoint.

    Raises:
        UserError: the folder is not a checkpoint, or has a newer format.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        problem = "this is not a checkpoint of stillbox"
        manifest = read_manifest(folder / MANIFEST, problem=problem, fix=WRITTEN)
        try:
            written, self.step = manifest["format"], int(manifest["step"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise UserError(problem, where=str(folder), fix=WRITTEN) from error
        if written != _FORMAT:
            problem = f"the checkpoint has format {written}, this version reads format {_FORMAT}"
            fix = "use the version of stillbox that versions.json names"
            raise UserError(problem, where=str(folder), fix=fix)
        sections, metadata = manifest.get("sections"), manifest.get("metadata")
        # A section is the name of a file in the folder, and of no other file.
        if not isinstance(metadata, dict) or not (
            isinstance(sections, dict) and all(map(str.isidentifier, sections))
        ):
            problem = "the list of the checkpoint's sections is damaged"
            raise UserError(problem, where=str(folder / MANIFEST), fix="use another checkpoint")
        self._sections, self._metadata = sections, metadata
        self.checksums = Checksums.parse(manifest.get("checksums"), folder, MANIFEST)
        # All but the arrays, which are compared when they are read.
        self.checksums.verify(
            name for name in self.checksums.files or () if not name.endswith(".npz")
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """What was stored beside the arrays."""
        return dict(self._metadata)

    @property
    def sections(self) -> tuple[str, ...]:
        """Names of the parts of the training state."""
        return tuple(self._sections)

    def read(self, section: str) -> Arrays:
        """Returns the arrays of one section by name.

        Raises:
            UserError: there is no such section, or its file is missing or damaged.
        """
        return dict(self._open(section))

    def _open(self, section: str) -> NpzFile:
        """Returns the arrays of one section by name, which are read on access."""
        if section not in self.sections:
            problem = f"the checkpoint has no section {section!r}"
            fix = nearest(section, self.sections)
            raise UserError(problem, where=str(self.folder), fix=fix)
        path = self.folder / f"{section}.npz"
        compare = partial(self.checksums.compare, path.name)
        arrays = NpzFile(path, inside=self.folder, check=compare)
        expected = self._sections[section]
        # Older checkpoints have checksums of the arrays, and none of the list of arrays.
        if len(arrays) != expected:
            raise UserError(f"{len(arrays)} of {expected} arrays are left", where=str(path))
        return arrays

    def restore(self, like: Mapping[str, Any]) -> dict[str, Any]:
        """Returns pytrees of the structure of `like`, bit for bit as they were saved.

        `like` has a pytree for each wanted section. The leaf's sharding places an array; without
        one it stays a numpy array.

        Raises:
            UserError: names, shapes or types of the stored arrays and of `like` differ.
        """
        return {section: self._restore(section, tree) for section, tree in like.items()}

    def _restore(self, section: str, tree: object) -> object:
        stored = self._open(section)
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        wanted = {_leaf_name(path): leaf for path, leaf in leaves}
        expected = {
            name: f"{np.dtype(leaf.dtype)}{list(leaf.shape)}" for name, leaf in wanted.items()
        }
        held = {name: stored.describe(name) for name in stored}
        differences = [
            f"{name}: {expected.get(name, 'nothing')} wanted, {held.get(name, 'nothing')} stored"
            for name in sorted(expected.keys() | held.keys())
            if expected.get(name) != held.get(name)
        ]
        if differences:
            raise UserError(
                f"section {section!r} does not fit this experiment, in "
                f"{count_text(len(differences), 'array')}: {'; '.join(differences[:3])}",
                where=str(self.folder),
                fix="take the experiment.yaml that lies there, or start a new model directory",
            )
        placed = [
            stored[name]
            if getattr(leaf, "sharding", None) is None
            else jax.device_put(stored[name], leaf.sharding)
            for name, leaf in wanted.items()
        ]
        return jax.tree_util.tree_unflatten(structure, placed)

    def parameters(self, *, prefer_ema: bool = False) -> Arrays:
        """Returns parameters and moving statistics by path, moving averages where `prefer_ema`."""
        sections = ["params", "stats"] + ["ema"] * prefer_ema
        groups = [self.read(name) for name in sections if name in self.sections]
        return {path: array for arrays in groups for path, array in arrays.items()}
