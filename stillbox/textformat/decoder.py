"""From a syntax tree to typed messages: which fields are set, and where."""

from dataclasses import dataclass, field
from typing import Any

from stillbox.errors import UserError, nearest
from stillbox.textformat.parser import Block, Field, Scalar
from stillbox.textformat.schema import SCALARS, FieldType, MessageType, Schema, Value


@dataclass
class Entry:
    """One value of a field."""

    value: Any
    """bool, int, float, str (strings and the names of enum values) or `Message`."""
    where: str
    """file:line:column of the field's name."""


@dataclass
class Message:
    """The fields of a message that are set."""

    type: MessageType
    where: str
    """file:line:column of its opening brace."""
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    """Values by field name, several only where the field is repeated."""

    def which(self, oneof: str) -> str | None:
        """Returns the name of the field that is set in a choice, None if none is."""
        return next((n for n in self.entries if self.type.fields[n].oneof == oneof), None)


class Decoder:
    """Decodes syntax trees by a schema and collects warnings on the way.

    Args:
        schema: the types of all messages.
        strict: refuse a second value of a field, instead of replacing the first with a warning.
    """

    def __init__(self, schema: Schema, *, strict: bool = False) -> None:
        self._schema, self._strict = schema, strict
        self.warnings: list[str] = []
        """Deprecated fields, and values that a later one replaced."""

    def decode(self, block: Block, message_type: str) -> Message:
        """Returns the message of that type which `block` spells.

        Raises:
            UserError: an unknown field, or a value that its type does not allow.
        """
        message = Message(self._schema.messages[message_type], block.where)
        self.merge(message, block)
        return message

    def merge(self, message: Message, block: Block) -> None:
        """Merges `block` into `message` as protobuf does.

        Scalars replace, messages merge, repeated fields append, and a member of a choice removes
        the member that was set before.
        """
        for node in block.fields:
            kind = self._field_type(message, node)
            if kind.replacement:
                self.warnings.append(
                    f"{node.where}: {message.type.name}.{node.name} is deprecated; "
                    f"write {kind.replacement}"
                )
            self._leave_oneof(message, node, kind)
            if node.is_list and not kind.repeated:
                raise UserError(f"{node.name} takes one value and no list", where=node.where)
            for value in node.values:
                self._set(message, node, kind, value)

    def _field_type(self, message: Message, node: Field) -> FieldType:
        # Strict, as protobuf is: a misspelt field that is skipped costs a training run.
        found = message.type.fields.get(node.name)
        if found is not None:
            return found
        what = f"{message.type.name} has no field {node.name!r}"
        fix = self._nearest_field(message, node.name)
        if node.name.startswith("["):
            what = f"the extension {node.name} belongs to another program"
            fix = "stillbox reads configs without extensions"
        raise UserError(what, where=node.where, fix=fix)

    def _nearest_field(self, message: Message, name: str) -> str:
        """Returns the name that was meant: one of this message, or the message that has it."""
        guess = nearest(name, message.type.fields)
        owners = [owner for owner, kind in self._schema.messages.items() if name in kind.fields]
        if not owners or guess.startswith("did you mean"):
            return guess
        # Most likely a brace is missing or one too many.
        others = f" and {len(owners) - 3} others" if len(owners) > 3 else ""
        return f"it belongs to {', '.join(owners[:3])}{others}: check the braces"

    def _leave_oneof(self, message: Message, node: Field, kind: FieldType) -> None:
        previous = message.which(kind.oneof) if kind.oneof else None
        if previous is not None and previous != node.name:
            (entry,) = message.entries.pop(previous)
            self._replaced(
                node, f"replaces {previous} of {entry.where}: only one of them can be set"
            )

    def _replaced(self, node: Field, what: str) -> None:
        if self._strict:
            raise UserError(f"{node.name} {what}", where=node.where, fix="keep one of them")
        self.warnings.append(f"{node.where}: {node.name} {what}")

    def _set(self, message: Message, node: Field, kind: FieldType, value: Scalar | Block) -> None:
        existing = message.entries.setdefault(node.name, [])
        if kind.is_message != isinstance(value, Block):
            wanted = f"one value: {kind.type}"
            if kind.is_message:
                wanted = f"a message: {node.name} {{ ... }}"
            raise UserError(
                f"{node.name} holds {wanted}",
                where=value.where,
                fix=None if kind.is_message else f"write {node.name}: VALUE",
            )
        if isinstance(value, Scalar):
            if existing and not kind.repeated:
                self._replaced(
                    node, f"is set again; this value replaces that of {existing[0].where}"
                )
                existing.clear()
            existing.append(Entry(self._scalar(kind, value), node.where))
        elif kind.type == "opaque":
            # Its content is not decoded: nothing reads it.
            existing.append(Entry(Message(MessageType(kind.type, {}), value.where), node.where))
        elif existing and not kind.repeated:
            self.merge(existing[0].value, value)
        else:
            existing.append(Entry(self.decode(value, kind.type), node.where))

    def _scalar(self, kind: FieldType, value: Scalar) -> Value:
        result = self._schema.convert(kind.type, value.text, quoted=value.quoted)
        if result is None:
            enum = self._schema.enums.get(kind.type)
            shown = repr(value.text) if value.quoted else value.text
            article = "an" if kind.type[0] in "aeiou" else "a"
            raise UserError(
                f"{kind.name}: {shown} is not {article} {kind.type}",
                where=value.where,
                fix=nearest(value.text, enum) if enum else SCALARS[kind.type],
            )
        return result
