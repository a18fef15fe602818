"""What writes each format and what runs it. A format is one module with these two functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from stillbox.exporting.manifest import Manifest
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import Format

Run = Callable[[Any], dict[str, np.ndarray]]
"""From the value of the one input to the outputs by name. Images are `[B, h, w, 3]`; encoded
images and tf.Examples are `[B]` objects of bytes."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a writer left in the folder."""

    files: dict[str, str]
    """What each file or folder is, by its name."""
    needs: dict[str, str] = field(default_factory=dict)
    """The least version of what reads it, by name, and when it expires."""
    known_bad: tuple[str, ...] = ()
    """Versions that are known to refuse it."""
    written_with: dict[str, str] = field(default_factory=dict)
    """Versions of what wrote it."""


class FormatModule(Protocol):
    """A module of this folder that knows one format."""

    def write(
        self, program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]
    ) -> Written:
        """Writes the artefact.

        Args:
            program: the model and the settings.
            folder: an empty folder.
            calibration: images `[h, w, 3]` uint8 to calibrate a quantised model on.

        Raises:
            UserError: the extra is not installed, or the format cannot hold this model.
        """
        ...

    def load(self, folder: Path, manifest: Manifest, runtime: str = "") -> Run:
        """Loads the artefact into its runtime.

        Args:
            folder: of the artefact.
            manifest: of the same.
            runtime: which of several runtimes; empty: the first choice.

        Raises:
            UserError: the runtime is not installed, or refuses the artefact.
        """
        ...


_MODULES: dict[Format, str] = {
    "saved_model": "stillbox.exporting.saved_model.format",
    "stablehlo": "stillbox.exporting.stablehlo",
    "tflite": "stillbox.exporting.tflite.format",
    "onnx": "stillbox.exporting.onnx.format",
}


def format_module(name: Format) -> FormatModule:
    """Returns the module of a format; it imports its runtime when it is first used."""
    return cast(FormatModule, import_module(_MODULES[name]))
