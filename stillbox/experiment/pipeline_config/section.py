"""Messages of a `pipeline.config` as sections."""

import functools
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.no_effect import NO_EFFECT, REFUSED
from stillbox.experiment.sections import Reader, ReadLog, Section, Unread
from stillbox.experiment.values import Value
from stillbox.textformat.decoder import Entry, Message
from stillbox.textformat.schema import FieldType, Schema, parse_schema

# Values of enums whose name here is not the same word in lower case.
_WORDS = {"NEAREST_NEIGHBOR": "nearest", "RELU_6": "relu6"}

ROOT = "TrainEvalPipelineConfig"
"""The message that a whole file is."""


@functools.cache
def load_schema() -> Schema:
    """Returns all messages and enums of the language, read from `messages.txt`."""
    return parse_schema((Path(__file__).parent / "messages.txt").read_text(encoding="utf-8"))


class MessageSection(Section):
    """A message. Absent inner messages read as empty ones; words of enums are the schema's."""

    def __init__(self, message: Message, log: ReadLog) -> None:
        super().__init__(log)
        self._message = message

    def key(self, name: str) -> Hashable:
        """Returns the identity of the message and the name."""
        # Identity, because equal messages in two places are read separately.
        return id(self._message), name

    def label(self, name: str) -> str:
        """Returns `Message.field`."""
        return f"{self._message.type.name}.{name}"

    def is_scalar(self, name: str) -> bool:
        """Says whether the message has a field of this name that is no message."""
        kind = self._message.type.fields.get(name)
        return kind is not None and not kind.is_message

    def has(self, name: str) -> bool:
        """Says whether a field is set."""
        return bool(self._message.entries.get(name))

    def has_any(self) -> bool:
        """Says whether any field is set."""
        return bool(self._message.entries)

    def where(self, name: str = "") -> str:
        """Returns file:line:column of a field, of the message if the field is not set."""
        entries = self._message.entries.get(name)
        return entries[0].where if entries else self._message.where

    def get(self, name: str) -> Value:
        """Returns a scalar, its default if it is not set, or a tuple of scalars."""
        kind = self._message.type.fields[name]
        values = [entry.value for entry in self._message.entries.get(name, [])]
        if kind.type in load_schema().enums:
            values = [_WORDS.get(word, word.lower()) for word in values or [kind.default]]
        if kind.repeated:
            return tuple(values)
        return values[0] if values else kind.default

    def spell(self, value: Value) -> str:
        """Returns a scalar as the text format writes it."""
        return _spell(value)

    def child(self, name: str) -> "MessageSection":
        """Returns an inner message."""
        if self.has(name):
            return self.children(name)[0]
        kind = load_schema().messages[self._message.type.fields[name].type]
        return MessageSection(Message(kind, self.where()), self.log)

    def children(self, name: str) -> tuple["MessageSection", ...]:
        """Returns all values of a repeated message."""
        self.log.read.add(self.key(name))
        entries = self._message.entries.get(name, [])
        return tuple(MessageSection(entry.value, self.log) for entry in entries)

    def read_inner(self, name: str, reader: Reader, path: str) -> Value:
        """Returns the result of `reader` for an inner message, or for each of a repeated one."""
        if self._message.type.fields[name].repeated:
            inner = enumerate(self.children(name))
            return tuple(reader(section, f"{path}.{index}") for index, section in inner)
        return reader(self.child(name), path)

    def is_damaged(self) -> bool:
        """Says whether something was cut out of it, or out of the message that lacks it."""
        return self._message.where in self.log.damaged

    def member(self, oneof: str, valid: Mapping[str, Any]) -> str:
        """Returns the name of the member of a choice that is set.

        Raises:
            UserError: none is set, or one that is not in `valid`.
        """
        name, there_is = self._message.which(oneof), ", ".join(valid)
        if name is None and self.is_damaged():
            name = next(iter(valid))
        if name is None:
            what = f"{self._message.type.name} chooses nothing"
            raise UserError(what, where=self.where(), fix=f"add {there_is}")
        if name not in valid:
            label = self.label(name)
            what = f"{label}: {REFUSED[label]}" if label in REFUSED else f"{label} is not supported"
            raise UserError(what, where=self.where(name), fix=f"there is: {there_is}")
        return name

    def finish(self) -> None:
        """Notes what is set without effect.

        Raises:
            UserError: something is set that is not read and is not its default.
        """
        self.log.finish(_unread(self._message, self.log), REFUSED)


def choice(oneof: str, readers: Mapping[str, Reader]) -> Reader:
    """Returns a reader of a choice: that of the member that is set."""

    def read(section: MessageSection, path: str, **values: Value) -> Value:
        name = section.member(oneof, readers)
        return readers[name](section.child(name), path, **values)

    return read


def _unread(message: Message, log: ReadLog) -> Iterator[Unread]:
    for name, entries in message.entries.items():
        kind = message.type.fields[name]
        for entry in entries:
            key = (id(message), name)
            if key not in log.read:
                reason = log.idle.get(key) or NO_EFFECT.get(message.type.name, {}).get(name)
                if reason or kind.repeated or entry.value != kind.default:
                    yield _describe(f"{message.type.name}.{name}", kind, entry, reason)
            elif isinstance(entry.value, Message):
                yield from _unread(entry.value, log)


def _describe(label: str, kind: FieldType, entry: Entry, reason: str | None) -> Unread:
    return Unread(
        label=label,
        where=entry.where,
        value=None if kind.is_message else _spell(entry.value),
        default=None if kind.is_message or kind.repeated else _spell(kind.default),
        no_effect=reason,
        deprecated=kind.deprecated,
    )


def _spell(value: Value) -> str:
    """Returns a value as the text format writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
