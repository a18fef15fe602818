"""The manifest of an artefact: input and output, requirements, verification."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stillbox.devices.announcing import announcing
from stillbox.errors import UserError
from stillbox.exporting.settings import ExportSettings
from stillbox.records.files import write_whole
from stillbox.untrusted import open_untrusted, read_untrusted

MANIFEST, EXPERIMENT, LABEL_MAP = "export.json", "experiment.yaml", "label_map.pbtxt"
_VERSION = 1
# Protocol messages and flatbuffers have no more.
MAX_PROGRAM_BYTES = 2**31
"""Greatest size of a file of an export."""
_MOST_MANIFEST_BYTES = 2**22


@dataclass(frozen=True, kw_only=True)
class Written:
    """What the writer of a format reports."""

    files: dict[str, str]
    """Description of each file or folder by name."""
    needs: dict[str, str] = field(default_factory=dict)
    """Least versions of the programs that read the artefact, and the date on which it expires."""
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
    """The exported model."""
    verified: dict[str, Any] = field(default_factory=dict)
    """Largest differences to the checkpoint in boxes (pixels) and scores."""

    def write(self, folder: Path) -> None:
        """Writes the manifest into an artefact's folder."""
        content = {"version": _VERSION, **asdict(self)}
        write_whole(folder / MANIFEST, json.dumps(content, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads the manifest in an artefact's folder.

        Raises:
            UserError: there is none, or a later stillbox wrote it.
        """
        try:
            content = json.loads(
                read_untrusted(folder / MANIFEST, most=_MOST_MANIFEST_BYTES, inside=folder)
            )
        except (OSError, ValueError) as error:
            raise UserError(
                f"{MANIFEST} cannot be read: {error}",
                where=str(folder),
                fix="give the folder that `stillbox export` wrote",
            ) from error
        if content.pop("version", None) != _VERSION:
            raise UserError(
                "a later stillbox wrote this export", where=str(folder), fix="install that version"
            )
        settings = ExportSettings(**_with_tuples(content.pop("settings")))
        return cls(settings=settings, **_with_tuples(content))


def _with_tuples(content: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }


def check_files(folder: Path) -> None:
    """Opens every file of an export, which a runtime is about to read.

    Raises:
        UserError: one is no regular file, is too large, or lies outside of the folder.
    """
    for path in folder.rglob("*"):
        # A link to a folder is refused as what it is if it leads out, and as a folder otherwise.
        if path.is_symlink() or not path.is_dir():
            open_untrusted(path, most=MAX_PROGRAM_BYTES, inside=folder).close()


def is_export(path: Path) -> bool:
    """Returns whether `stillbox export` wrote this folder."""
    # The first that many commands ask of a folder, whose disk may not answer.
    with announcing(lambda: f"waiting for {path}"):
        return (path / MANIFEST).is_file()
