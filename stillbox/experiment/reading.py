"""The core of both readers of other programs' configurations, and the result of reading.

Every field that a configuration sets ends in one of three ways: it becomes a value of the
experiment, it has no effect and leaves a note with the reason, or it is refused by name with its
position. A reader is mostly a set of tables (`field_mapping`, `choice`) from fields of its
language to fields of the schema.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from stillbox.errors import UserError, nearest
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import Value

NO_COUNTERPART = "has no counterpart in stillbox"


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A field that is set and that no part of the reader reads."""

    label: str
    where: str | None
    value: str | None
    """As the language writes it; None for a section."""
    default: str | None
    """None where there is none."""
    no_effect: str | None = None
    """Why it is accepted without effect."""
    deprecated: bool = False


class ReadTracker:
    """The result of reading besides the experiment, and which fields are read.

    Args:
        damaged: positions of sections from which refused fields were removed (see `refusals`).
    """

    def __init__(self, damaged: Collection[str] = ()) -> None:
        self.damaged = damaged
        self.origins: dict[str, str] = {}
        """Dotted path in the experiment -> file:line:column or option."""
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.read: set[Hashable] = set()
        """Keys of all fields that are read, see `Section.key`."""
        self.idle: dict[Hashable, str] = {}
        """Keys of fields without effect beside the others of this file, and why."""

    def finish(
        self, unread: Iterable[Unread], reasons: Mapping[str, str], *, together: bool = False
    ) -> None:
        """Notes fields without effect, those with one reason `together` if wanted.

        `reasons`: label -> why a field is refused, where more than `NO_COUNTERPART` is known.

        Raises:
            UserError: names every field that is not read and has an effect in the original.
        """
        refused: list[Unread] = []
        idle: dict[Hashable, list[Unread]] = {}
        for field in unread:
            if field.no_effect is None:
                refused.append(field)
            else:
                idle.setdefault(field.no_effect if together else field, []).append(field)
        if refused:
            raise _refusal(refused, reasons)
        for fields in idle.values():
            shown = ", ".join(field.label for field in fields[:3])
            more = f" and {len(fields) - 3} more" if len(fields) > 3 else ""
            old = "is deprecated and " if fields[0].deprecated else ""
            verb = "has" if len(fields) == 1 else "have"
            listing = self.warnings if fields[0].deprecated else self.notes
            listing.append(
                f"{fields[0].where}: {shown}{more} {old}{verb} no effect here: "
                f"{fields[0].no_effect}"
            )


def _refusal(refused: list[Unread], reasons: Mapping[str, str]) -> UserError:
    first, *others = refused
    # One message for all of them: mending one a run is tiresome.
    rest = "".join(f"\n  {other.where}: {other.label} is refused too" for other in others)
    shown = first.label if first.value is None else f"{first.label} = {first.value}"
    advice = "take it out, if the model can do without it"
    if first.default is not None:
        advice = f"leave it at its default, {first.default}"
    reason = reasons.get(first.label, NO_COUNTERPART)
    return UserError(f"{shown}: {reason}{rest}", where=first.where, fix=advice)


class Section(ABC):
    """A group of named fields: a message of text format, a section of a dictionary."""

    def __init__(self, log: ReadTracker) -> None:
        self.log = log

    @abstractmethod
    def key(self, name: str) -> Hashable:
        """Returns what identifies a field in the log."""

    @abstractmethod
    def label(self, name: str) -> str:
        """Returns a field's full name in the language."""

    @abstractmethod
    def is_scalar(self, name: str) -> bool:
        """Returns whether the language has a field of this name that is no section."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Returns whether a field is set."""

    @abstractmethod
    def where(self, name: str = "") -> str | None:
        """Returns the position of a field, of the section if the field is not set."""

    @abstractmethod
    def get(self, name: str) -> Value:
        """Returns a scalar, its default if it is not set, or a tuple of scalars."""

    @abstractmethod
    def spell(self, value: Value) -> str:
        """Returns a scalar as the language writes it."""

    @abstractmethod
    def read_inner(self, name: str, reader: "FieldReader", path: str) -> Value:
        """Returns the result of `reader` for an inner section, or for each of several."""

    def value(self, name: str, *paths: str) -> Value:
        """Reads a field as `get`; `paths` are the fields of the experiment that follow it."""
        self.log.read.add(self.key(name))
        where = self.where(name)
        # Defaults have no origin: no position decides them.
        if where is not None and self.has(name):
            self.log.origins |= dict.fromkeys(paths, where)
        return self.get(name)

    def read_fields(self, path: str, *names: str, **renamed: str) -> dict[str, Any]:
        """Returns fields as keyword arguments; `ours="theirs"` where the names differ."""
        pairs = {name: name for name in names} | renamed
        return {ours: self.value(theirs, f"{path}.{ours}") for ours, theirs in pairs.items()}

    def choose(
        self,
        name: str,
        valid: Iterable[Value],
        *paths: str,
        reasons: Mapping[str, str] | None = None,
    ) -> Value:
        """Returns a word, or a tuple of words, that has to be one of the valid ones.

        Raises:
            UserError: a word is not valid.
        """
        value, valid = self.value(name, *paths), tuple(valid)
        for word in value if isinstance(value, tuple) else (value,):
            if word not in valid:
                reason, close = (
                    (reasons or {}).get(word),
                    nearest(str(word), map(str, valid), limit=1),
                )
                guess = f"{close} " if close.startswith("did you mean") and not reason else ""
                self.refuse(
                    name, reason, f"{guess}there is: {', '.join(map(str, valid))}", value=word
                )
        return value

    def refuse(self, name: str, why: str | None, fix: str, value: Value = None) -> NoReturn:
        """Stops at a value of a field: the given one, or the one that it has.

        Raises:
            UserError: always.
        """
        shown = self.label(name)
        if value is not None or self.is_scalar(name):
            shown += f" = {self.spell(self.get(name) if value is None else value)}"
        problem = f"{shown}: {why}" if why else f"{shown} is not supported"
        raise UserError(problem, where=self.where(name), fix=fix)

    def ignore(self, reason: str, *names: str) -> None:
        """Declares fields, if they are set, to have no effect beside the others of this file."""
        self.log.idle |= {self.key(name): reason for name in names}

    def note(self, name: str, text: str) -> None:
        """Adds a note at a field's position."""
        self.log.notes.append(self._at(name, text))

    def warn(self, name: str, text: str) -> None:
        """Adds a warning at a field's position."""
        self.log.warnings.append(self._at(name, text))

    def _at(self, name: str, text: str) -> str:
        where = self.where(name)
        return text if where is None else f"{where}: {text}"


FieldReader = Callable[..., Any]
"""From a section and a path in the experiment to a value of that path."""


Made = TypeVar("Made", bound=Any)


def field_mapping(
    made: type[Made],
    same: str = "",
    optional: str = "",
    /,
    **renamed: str | tuple[str, FieldReader],
) -> Callable[..., Made]:
    """Returns a reader of a class of the schema.

    The reader takes further fields as keyword arguments, in place of fields of the section.

    Args:
        made: the class.
        same: fields that have the same name in the section, with spaces between them.
        optional: fields that have the schema's default if they are not set, not the language's.
        renamed: field -> name in the section, or name and reader of an inner section.
    """
    sources = {name: name for name in same.split()} | renamed
    defaulted = optional.split()
    fields = {field.name for field in dataclasses.fields(made)}
    if unknown := {*sources, *defaulted} - fields:
        raise TypeError(f"{made.__name__} has no field {min(unknown)!r}")

    def read(section: Section, path: str, **values: Value) -> Made:
        for ours, theirs in sources.items():
            inner = f"{path}.{ours}"
            if ours in values:
                continue
            if isinstance(theirs, tuple):
                values[ours] = section.read_inner(theirs[0], theirs[1], inner)
            elif ours not in defaulted or section.has(theirs):
                values[ours] = section.value(theirs, inner)
        return made(**values)

    return read


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
    """Registers the decorated function as the reader of a format."""

    def register(reader: FormatReader) -> FormatReader:
        READERS.append((recognizes, reader))
        return reader

    return register


LayersReader = Callable[..., Reading]
"""From layers of YAML, each over the ones before, `experiment` and `name`: see `reads_layers`."""

Layered = TypeVar("Layered", bound=LayersReader)

LAYERS_READERS: dict[str, LayersReader] = {}
"""Readers of dialects of YAML that stillbox recognises and does not read itself, by name."""


def reads_layers(dialect: str) -> Callable[[Layered], Layered]:
    """Registers the decorated function as the reader of a dialect of YAML.

    It takes parsed layers, and as keywords the dialect's own name of the experiment and the name
    of the result.
    """

    def register(reader: Layered) -> Layered:
        LAYERS_READERS[dialect] = reader
        return reader

    return register
