"""From the syntax tree to typed messages that know what was set, and where."""

import re
from dataclasses import dataclass, field
from typing import Any

from stillbox.errors import UserError, nearest
from stillbox.experiment.textproto.parser import Block, Field, Scalar
from stillbox.experiment.textproto.types import FieldType, MessageType, Schema

_TRUE, _FALSE = ("true", "True", "t", "1"), ("false", "False", "f", "0")
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?")
_NAMED_FLOAT = re.compile(r"-?(?:inf(?:inity)?|nan)f?", re.IGNORECASE)
_INTEGER = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]+)|(\d+))")
# More digits than any range has; Python itself refuses to read thousands of them.
_MOST_DIGITS = 100
_RANGES = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}


@dataclass
class Entry:
    """One value of a field."""

    value: Any
    """bool, int, float, str (strings and the names of enum values) or `Message`."""
    where: str
    """file:line:column of the field's name."""


@dataclass
class Message:
    """What was set of a message; proto2's presence is membership in `entries`."""

    type: MessageType
    where: str
    """file:line:column of its opening brace."""
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    """Values by field name, several only where the field is repeated."""

    def which(self, oneof: str) -> str | None:
        """Returns the name of the field that is set in a choice, None where none is."""
        return next((n for n in self.entries if self.type.fields[n].oneof == oneof), None)


class Decoder:
    """Decodes syntax trees against a schema and collects warnings on the way."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.warnings: list[str] = []
        """Deprecated fields and values that a later one replaced."""

    def decode(self, block: Block, message_type: str) -> Message:
        """Returns the message of that type which `block` spells.

        Raises:
            UserError: an unknown field or a value that its type does not allow.
        """
        message = Message(self._schema.messages[message_type], block.where)
        self.merge(message, block)
        return message

    def merge(self, message: Message, block: Block) -> None:
        """Merges `block` into `message` as protobuf does (fact sheet 1.1).

        Scalars replace, messages merge, repeated fields append, and a member of a choice removes
        the member that was set before.
        """
        for node in block.fields:
            field_type = self._field_type(message, node)
            if field_type.replacement:
                self.warnings.append(
                    f"{node.where}: {message.type.name}.{node.name} is deprecated; "
                    f"write {field_type.replacement}"
                )
            self._leave_oneof(message, node, field_type)
            if node.is_list and not field_type.repeated:
                raise UserError(f"{node.name} takes one value and no list", where=node.where)
            for value in node.values:
                self._set(message, node, field_type, value)

    def _field_type(self, message: Message, node: Field) -> FieldType:
        # Strict, as protobuf is: a misspelt field that is skipped costs a training run.
        found = message.type.fields.get(node.name)
        if found is None:
            if node.name.startswith("["):
                raise UserError(
                    f"the extension {node.name} belongs to another program",
                    where=node.where,
                    fix="stillbox reads configs without extensions",
                )
            raise UserError(
                f"{message.type.name} has no field {node.name!r}",
                where=node.where,
                fix=self._nearest_field(message, node.name),
            )
        return found

    def _nearest_field(self, message: Message, name: str) -> str:
        """Returns what was meant: a name here, or the message that this one belongs to."""
        guess = nearest(name, message.type.fields)
        owners = [owner for owner, kind in self._schema.messages.items() if name in kind.fields]
        if not owners or guess.startswith("did you mean"):
            return guess
        # Most likely a brace is missing or one too many.
        others = f" and {len(owners) - 3} others" if len(owners) > 3 else ""
        return f"it belongs to {', '.join(owners[:3])}{others}: look at the braces"

    def _leave_oneof(self, message: Message, node: Field, field_type: FieldType) -> None:
        if field_type.oneof is None:
            return
        previous = message.which(field_type.oneof)
        if previous is not None and previous != node.name:
            (entry,) = message.entries.pop(previous)
            self.warnings.append(
                f"{node.where}: {node.name} replaces {previous} of {entry.where}: "
                "only one of them can be set"
            )

    def _set(self, message: Message, node: Field, kind: FieldType, value: Scalar | Block) -> None:
        existing = message.entries.setdefault(node.name, [])
        # What an opaque message holds is never looked at: whoever reads it will refuse it.
        nested = kind.type == "opaque" or kind.type in self._schema.messages
        if nested != isinstance(value, Block):
            wanted = f"a message: {node.name} {{ ... }}" if nested else f"one value: {kind.type}"
            example = None if nested else f"write {node.name}: VALUE"
            raise UserError(f"{node.name} holds {wanted}", where=value.where, fix=example)
        if isinstance(value, Scalar):
            if existing and not kind.repeated:
                self.warnings.append(
                    f"{node.where}: {node.name} is set again; this value replaces "
                    f"that of {existing[0].where}"
                )
                existing.clear()
            existing.append(Entry(self._scalar(kind, value), node.where))
        elif kind.type == "opaque":
            existing.append(Entry(Message(MessageType(kind.type, {}), value.where), node.where))
        elif existing and not kind.repeated:
            self.merge(existing[0].value, value)
        else:
            existing.append(Entry(self.decode(value, kind.type), node.where))

    def _scalar(self, kind: FieldType, value: Scalar) -> bool | int | float | str:
        result = convert(kind.type, value, self._schema)
        if result is None:
            enum = self._schema.enums.get(kind.type)
            shown = repr(value.text) if value.quoted else value.text
            article = "an" if kind.type[0] in "aeiou" else "a"
            raise UserError(
                f"{kind.name}: {shown} is not {article} {kind.type}",
                where=value.where,
                fix=nearest(value.text, enum) if enum else _EXAMPLES[kind.type],
            )
        return result


_EXAMPLES = {
    "bool": "true or false",
    "int32": "a whole number, such as 16",
    "uint32": "a whole number that is not negative, such as 16",
    "float": "a number, such as 0.5 or 4e-5",
    "double": "a number, such as 0.5 or 4e-5",
    "string": 'text in quotes, such as "data/train.record"',
}


def default_value(kind: FieldType, schema: Schema) -> bool | int | float | str | None:
    """Returns what an unset singular scalar field stands for; None for messages."""
    if kind.type in schema.enums:
        return kind.default or next(iter(schema.enums[kind.type]))
    if kind.type not in _EXAMPLES:
        return None
    if kind.type == "string":
        return (kind.default or "").strip('"')
    return convert(kind.type, Scalar(kind.default or "0", False, "table"), schema)


def convert(type_name: str, value: Scalar, schema: Schema) -> bool | int | float | str | None:
    """Returns a scalar of that type, None where the text does not spell one."""
    text = value.text
    if type_name == "string" or value.quoted:
        return text if type_name == "string" and value.quoted else None
    if type_name == "bool":
        return text in _TRUE if text in _TRUE + _FALSE else None
    if type_name in ("float", "double"):
        return _convert_float(text)
    number = _convert_integer(text)
    if type_name in _RANGES:
        low, high = _RANGES[type_name]
        return number if number is not None and low <= number <= high else None
    # An enum value is written by name; its number is legal too.
    names = schema.enums[type_name]
    return text if text in names else next((n for n, i in names.items() if i == number), None)


def _convert_float(text: str) -> float | None:
    if _FLOAT.fullmatch(text) or _NAMED_FLOAT.fullmatch(text):
        # `inf` ends in an f that belongs to it, `1.0f` and `inff` in one that says float.
        return float(text[:-1] if text[-1] in "fF" and text[-3:].lower() != "inf" else text)
    return None


def _convert_integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    if match is None or len(text) > _MOST_DIGITS:
        return None
    sign, hexadecimal, octal, decimal = match.groups()
    base = 16 if hexadecimal else 8 if octal else 10
    return int(sign + (hexadecimal or octal or decimal), base)
