"""The manifest of an artefact: input and output, requirements, verification."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from stillbox.checkpoints.files import Checksums, read_manifest, write_manifest
from stillbox.checkpoints.model_directory import OF_TRAINING
from stillbox.devices.announcing import announcing
from stillbox.errors import UserError
from stillbox.experiment.updating import read_section
from stillbox.experiment.values import node_of
from stillbox.exporting.settings import LONGEST_SIDE, ExportSettings
from stillbox.records.files import write_whole
from stillbox.untrusted import open_untrusted

MANIFEST, EXPERIMENT, LABEL_MAP = "export.json", "experiment.yaml", "label_map.pbtxt"
# Protocol messages and flatbuffers cannot be larger.
MAX_PROGRAM_BYTES = 2**31
"""Greatest size of a file of an export."""
_VERSION = 2
_FOLDER = "give the folder that `stillbox export` wrote, or export again"
# The key of `needs` with the day after which later versions may refuse an artefact.
EXPIRES = "expires"


@dataclass(frozen=True, kw_only=True)
class Written:
    """What the writer of a format reports."""

    files: dict[str, str]
    """Description of each file or folder by name."""
    needs: dict[str, str] = field(default_factory=dict)
    """Least versions of the programs that read the artefact, and under `EXPIRES` its last day."""
    known_bad: tuple[str, ...] = ()
    """Versions that are known to refuse it."""
    written_with: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that wrote it."""


@dataclass(frozen=True, kw_only=True)
class Manifest(Written):
    """The content of `export.json`."""

    settings: ExportSettings
    input_size: tuple[int, int]
    """Height and width of the network input, in pixels."""
    resizer: dict[str, Any]
    """The resizer that makes the network input, inside the artefact or before it."""
    source: str
    tiles: dict[str, Any] = field(default_factory=dict)
    """The tiles that images are cut into before the artefact, with what a program that runs it has
    to do; empty: images are whole."""
    images: dict[str, Any] = field(default_factory=dict)
    """Channels and bits of the images, with what a program that runs it has to do; empty: RGB of 8
    bits."""
    verified: dict[str, Any] = field(default_factory=dict)
    """Largest differences to the checkpoint in boxes (pixels) and scores, and whether all of the
    artefact was compared."""

    checksums: Checksums | None = field(default=None, compare=False, repr=False)
    """Checksums of the files in the folder that the manifest was read from."""

    def write(self, folder: Path) -> None:
        """Writes the manifest into an artefact's folder, with checksums of all that lies there."""
        content = {"version": _VERSION, **asdict(replace(self, checksums=None))}
        for name in _OPTIONAL:
            if not content[name]:
                del content[name]
        content["checksums"] = Checksums.of_folder(folder, MANIFEST).to_json()
        write_whole(folder / MANIFEST, write_manifest(content))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads the manifest in an artefact's folder.

        Raises:
            UserError: there is none, a later stillbox wrote it, or a field has no sensible value.
        """
        content = read_manifest(
            folder / MANIFEST, problem=f"{MANIFEST} cannot be read", fix=_FOLDER
        )
        version = content.pop("version", None)
        if type(version) is not int or not 0 < version <= _VERSION:
            raise UserError(
                "a later stillbox wrote this export", where=str(folder), fix="install that version"
            )
        # The first version had no checksums.
        if (version == 1) == ("checksums" in content):
            raise _Field("checksums", folder).refusal("what its version has")
        checksums = Checksums.parse(content.pop("checksums", None), folder, MANIFEST)
        settings = _settings(content.pop("settings", None), str(folder / MANIFEST))
        content = {name: {} for name in _OPTIONAL} | content
        if wrong := sorted(content.keys() ^ _READERS.keys()):
            raise _Field(wrong[0], folder).refusal("present where it should be")
        values = {
            name: _READERS[name](_Field(name, folder), value) for name, value in content.items()
        }
        for name in values["files"]:
            if checksums.files is not None and not any(
                path == name or path.startswith(f"{name}/") for path in checksums.files
            ):
                raise _Field("files", folder).refusal(f"one of files with checksums ({name})")
        return cls(settings=settings, checksums=checksums, **values)

    def verify(self) -> None:
        """Compares every file of the artefact with its checksum, if it has one.

        Raises:
            UserError: a file was changed, or is missing.
        """
        if self.checksums is not None:
            self.checksums.verify()


class _Field(NamedTuple):
    """One field of a manifest. Its methods return the value or refuse it."""

    name: str
    folder: Path

    def refusal(self, wanted: str) -> UserError:
        where = str(self.folder / MANIFEST)
        return UserError(f"{self.name} is not {wanted}", where=where, fix=_FOLDER)

    def text(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.refusal("text")
        return value

    def words(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise self.refusal("a list")
        return tuple(map(self.text, value))

    def section(self, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refusal("a section with named fields")
        return value

    def texts(self, value: object) -> dict[str, str]:
        return {name: self.text(text) for name, text in self.section(value).items()}

    def size(self, value: object) -> tuple[int, int]:
        if not (isinstance(value, list) and [type(side) for side in value] == [int, int]):
            raise self.refusal("a height and a width")
        if not all(0 < side <= LONGEST_SIDE for side in value):
            raise self.refusal(f"of sides from 1 to {LONGEST_SIDE:,}")
        return value[0], value[1]


_READERS: Mapping[str, Callable[[_Field, object], Any]] = {
    "files": _Field.texts,
    "needs": _Field.texts,
    "known_bad": _Field.words,
    "written_with": _Field.texts,
    "input_size": _Field.size,
    "resizer": _Field.section,
    "source": _Field.text,
    "tiles": _Field.section,
    "images": _Field.section,
    "verified": _Field.section,
}

_OPTIONAL = "tiles", "images"
"""Sections that are left out if they are empty."""


def _settings(content: object, where: str) -> ExportSettings:
    if isinstance(content, dict):
        # Earlier versions could add a page for browsers to a TFLite model.
        content.pop("web", None)
    try:
        settings = read_section(ExportSettings(), node_of(content, where), "settings")
        settings.checked()
    except UserError as error:
        raise UserError(f"settings: {error.what}", where=where, fix=_FOLDER) from error
    except RecursionError as error:
        raise UserError("settings are nested too deep", where=where, fix=_FOLDER) from error
    return settings


def add_files(folder: Path, *names: str) -> None:
    """Enters files or folders that were written into an artefact's folder into its manifest.

    Nothing happens in a folder without a manifest.
    """
    if not (path := folder / MANIFEST).is_file():
        return
    content = read_manifest(path, problem=f"{MANIFEST} cannot be read", fix=_FOLDER)
    checksums = Checksums.parse(content["checksums"], folder, MANIFEST).with_files(*names)
    write_whole(path, write_manifest({**content, "checksums": checksums.to_json()}))


def check_files(folder: Path) -> None:
    """Opens every file of an export, which a runtime is about to read.

    Raises:
        UserError: one is no regular file, is too large, or lies outside of the folder.
    """
    for path in folder.rglob("*"):
        # A link to a folder is refused as a link if it leads outside, otherwise as a folder.
        if path.is_symlink() or not path.is_dir():
            open_untrusted(path, most=MAX_PROGRAM_BYTES, inside=folder).close()


def is_export(path: Path) -> bool:
    """Returns whether `stillbox export` wrote this folder.

    Raises:
        UserError: checkpoints lie beside the export, and could be mistaken for it.
    """
    # Many commands read this first, and the disk may not answer.
    with announcing(lambda: f"waiting for {path}"):
        exported = (path / MANIFEST).is_file()
        training = [name for name in OF_TRAINING if os.path.lexists(path / name)]
    if exported and training:
        raise UserError(
            f"the folder is an export, which is a program, and a model directory: it holds "
            f"{MANIFEST} and {training[0]}",
            where=str(path),
            fix=f"move {MANIFEST} and the files that it lists, or those of the training run, into "
            "a folder of their own",
        )
    return exported


def finished_export(folder: object) -> UserError:
    """Returns the error for weights, a step or changes of the model that are given to an export."""
    problem = "an export is finished: it takes no weights, no step and no changes of its model"
    return UserError(problem, where=str(folder), fix="export again with them")
