"""The manifest beside an artefact: its input and output, its needs, its verification."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.exporting.settings import ExportSettings
from stillbox.records.files import write_whole

MANIFEST, EXPERIMENT, LABEL_MAP = "export.json", "experiment.yaml", "label_map.pbtxt"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What stands in `export.json`."""

    settings: ExportSettings
    """What the artefact takes and returns."""
    files: dict[str, str]
    """What each file or folder of the artefact is, by its name."""
    input_size: tuple[int, int]
    """Height and width of the network input, in pixels."""
    resizer: dict[str, Any]
    """How an image becomes the network input, inside the artefact or before it."""
    source: str
    """The model that was exported."""
    needs: dict[str, str] = field(default_factory=dict)
    """The least version of what reads the artefact, by name, and when it expires."""
    known_bad: tuple[str, ...] = ()
    """Versions that are known to refuse it."""
    written_with: dict[str, str] = field(default_factory=dict)
    """Versions of what wrote it."""
    verified: dict[str, Any] = field(default_factory=dict)
    """Largest difference to the checkpoint in boxes (pixels) and scores, and on what images."""

    def write(self, folder: Path) -> None:
        """Writes the manifest into an artefact's folder."""
        content = {"version": _VERSION, **asdict(self)}
        write_whole(folder / MANIFEST, json.dumps(content, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads the manifest of an artefact's folder.

        Raises:
            UserError: there is none, or a later stillbox wrote it.
        """
        try:
            content = json.loads((folder / MANIFEST).read_text())
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
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in content.pop("settings").items()
        }
        content["input_size"] = tuple(content["input_size"])
        content["known_bad"] = tuple(content["known_bad"])
        return cls(settings=ExportSettings(**settings), **content)


def is_export(path: Path) -> bool:
    """Whether a folder is one that `stillbox export` wrote."""
    return (path / MANIFEST).is_file()
