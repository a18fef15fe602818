"""The result of reading a configuration of any format, and readers of further formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stillbox.experiment.schema import Experiment


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An experiment and how it was read."""

    experiment: Experiment
    origins: Mapping[str, str]
    """Dotted path in the experiment -> file:line:column or option, for every field that is set."""
    warnings: tuple[str, ...] = ()
    """Questionable values, each with its position."""
    notes: tuple[str, ...] = ()
    """Fields that are accepted without effect, and surprising defaults."""


Recognizer = Callable[[Path, str], bool]
"""From the path and the text of a file to whether a reader takes it."""
FormatReader = Callable[[str, str, str], Reading]
"""From a text, the file's name in positions and the experiment's name to what was read."""

READERS: list[tuple[Recognizer, FormatReader]] = []
"""Readers of further formats; the latest comes first."""


def reads(recognizes: Recognizer) -> Callable[[FormatReader], FormatReader]:
    """Registers the decorated function as the reader of a format.

    Args:
        recognizes: whether a file is of this format.
    """

    def register(reader: FormatReader) -> FormatReader:
        READERS.append((recognizes, reader))
        return reader

    return register
