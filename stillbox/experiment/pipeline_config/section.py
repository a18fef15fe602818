"""A message that remembers what was asked of it, so that nothing that was set goes unheard."""

from collections.abc import Iterator
from typing import Any, TypeAlias

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.messages import load_schema
from stillbox.experiment.pipeline_config.no_effect import NO_EFFECT, REFUSED
from stillbox.textformat.decoder import Entry, Message
from stillbox.textformat.schema import FieldType, MessageType

Scalar: TypeAlias = Any
"""bool, int, float or str, as the field's type says."""


class ReadLog:
    """What reading one file left behind besides the experiment."""

    def __init__(self) -> None:
        self.origins: dict[str, str] = {}
        """Dotted path in the experiment -> file:line:column, for every field that was set."""
        self.warnings: list[str] = []
        """What a person should look at."""
        self.notes: list[str] = []
        """What is accepted without effect, and defaults that surprise people."""
        self._heard: set[tuple[int, str]] = set()

    def hear(self, message: Message, name: str) -> None:
        """Remembers that a field was asked for."""
        self._heard.add((id(message), name))

    def finish(self, root: Message) -> None:
        """Notes what was set without effect.

        Raises:
            UserError: something was set that nobody asked for and that is not its default.
        """
        refused = []
        for message, name, entry in self._unheard(root):
            kind = message.type.fields[name]
            label = f"{message.type.name}.{name}"
            if reason := NO_EFFECT.get(message.type.name, {}).get(name):
                # An old field is worth a warning: it will be gone one day.
                listing = self.warnings if kind.deprecated else self.notes
                old = "is deprecated and " if kind.deprecated else ""
                listing.append(f"{entry.where}: {label} {old}has no effect here: {reason}")
            elif kind.repeated or entry.value != kind.default:
                refused.append((label, kind, entry))
        if refused:
            raise _refusal(refused)

    def _unheard(self, message: Message) -> Iterator[tuple[Message, str, Entry]]:
        for name, entries in message.entries.items():
            for entry in entries:
                # Identity, because equal messages in two places are heard separately.
                if (id(message), name) not in self._heard:
                    yield message, name, entry
                elif isinstance(entry.value, Message):
                    yield from self._unheard(entry.value)


def _refusal(refused: list[tuple[str, FieldType, Entry]]) -> UserError:
    label, kind, entry = refused[0]
    scalar = not isinstance(entry.value, Message)
    shown = f" = {_spell(entry.value)}" if scalar else ""
    # One message for all of them: mending one a run would try anybody's patience.
    reason = REFUSED.get(label, "has no counterpart in stillbox")
    others = [f"\n  {entry.where}: {label} is refused too" for label, _, entry in refused[1:]]
    advice = "take it out, where the model can do without it"
    if scalar and not kind.repeated:
        advice = f"leave it at its default, {_spell(kind.default)}"
    what = f"{label}{shown}: {reason}{''.join(others)}"
    return UserError(what, where=entry.where, fix=advice)


def _spell(value: Scalar) -> str:
    """Returns a value as the text format writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Section:
    """A message that is being read. Absent sub-messages read as empty ones."""

    def __init__(self, message: Message, log: ReadLog) -> None:
        self._message, self.log = message, log

    @property
    def where(self) -> str:
        """file:line:column of the message, for errors about what is not in it."""
        return self._message.where

    def has(self, name: str) -> bool:
        """Says whether the file sets this field."""
        return name in self._message.entries

    def position(self, name: str) -> str:
        """Returns file:line:column of a field, of the message where it is not set."""
        entries = self._message.entries.get(name)
        return entries[0].where if entries else self.where

    def value(self, name: str, path: str | None = None) -> Scalar:
        """Returns a scalar, its default where it is not set; `path` is its place in Experiment."""
        entries = self._take(name, path)
        kind = self._message.type.fields[name]
        return entries[0].value if entries else kind.default

    def values(self, name: str, path: str | None = None) -> tuple[Scalar, ...]:
        """Returns all values of a repeated scalar."""
        return tuple(entry.value for entry in self._take(name, path))

    def fill(self, path: str, *names: str, **renamed: str) -> dict[str, Any]:
        """Returns scalars as keyword arguments; `ours="theirs"` where the names differ."""
        pairs = {name: name for name in names} | renamed
        return {ours: self.value(theirs, f"{path}.{ours}") for ours, theirs in pairs.items()}

    def child(self, name: str) -> "Section":
        """Returns a sub-message."""
        entries = self._take(name, None)
        if entries:
            return Section(entries[0].value, self.log)
        return Section(Message(self._type_of(name), self.where), self.log)

    def children(self, name: str) -> tuple["Section", ...]:
        """Returns all values of a repeated message."""
        return tuple(Section(entry.value, self.log) for entry in self._take(name, None))

    def choose(self, oneof: str, valid: tuple[str, ...]) -> tuple[str, "Section"]:
        """Returns the member of a choice that is set.

        Raises:
            UserError: none is set, or one that is not in `valid`.
        """
        name = self._message.which(oneof)
        there_is = ", ".join(valid)
        if name is None:
            raise UserError(
                f"{self._message.type.name} chooses nothing",
                where=self.where,
                fix=f"add {there_is}",
            )
        if name not in valid:
            label = f"{self._message.type.name}.{name}"
            reason = REFUSED.get(label)
            raise UserError(
                f"{label}: {reason}" if reason else f"{label} is not supported",
                where=self.position(name),
                fix=f"there is: {there_is}",
            )
        return name, self.child(name)

    def _take(self, name: str, path: str | None) -> list[Entry]:
        self.log.hear(self._message, name)
        entries = self._message.entries.get(name, [])
        # Defaults have no origin: only what somebody wrote can be pointed at.
        if path is not None and entries:
            self.log.origins[path] = entries[0].where
        return entries

    def _type_of(self, name: str) -> MessageType:
        return load_schema().messages[self._message.type.fields[name].type]
