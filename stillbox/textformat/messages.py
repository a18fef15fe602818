"""Message types, read from tables, and the decoding of a syntax tree into typed messages.

A message has the fields that are set, and where.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stillbox import numerals
from stillbox.errors import UserError, nearest
from stillbox.textformat.parser import Block, Field, Scalar

Value = bool | int | float | str
"""A scalar of the text format; a value of an enum is its name."""

SCALARS = {
    "bool": "true or false",
    "int32": "a whole number, such as 16",
    "uint32": "a whole number that is not negative, such as 16",
    "float": "a number, such as 0.5 or 4e-5",
    "double": "a number, such as 0.5 or 4e-5",
    "string": 'text in quotes, such as "data/train.record"',
}
"""Types that are neither enum nor message, with an example for error messages."""

_FIELD = re.compile(
    r"(?P<name>\w+): (?P<type>[\w.]+)(?P<star>\*?)(?: = (?P<default>\S+))?"
    r"(?: \| (?P<oneof>\w+))?(?P<deprecated> !(?: (?P<replacement>.+))?)?"
)
_BOOLS = dict.fromkeys(("true", "True", "t", "1"), True) | dict.fromkeys(
    ("false", "False", "f", "0"), False
)
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?")
_NAMED_FLOAT = re.compile(r"-?(?:inf(?:inity)?|nan)f?", re.IGNORECASE)
_RANGES = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}


@dataclass(frozen=True, kw_only=True)
class FieldType:
    """One field of a message."""

    name: str
    type: str
    """A scalar, the name of an enum or a message, or `opaque`: a message of unknown content."""
    is_message: bool = False
    repeated: bool
    default: Value | None
    """Value of the field where it is not set; None for messages."""
    oneof: str | None
    """The choice that it belongs to."""
    deprecated: bool
    replacement: str | None
    """What to write instead of a deprecated field; None: the reader of the message names it."""


@dataclass(frozen=True)
class MessageType:
    """A message: its fields by name."""

    name: str
    fields: Mapping[str, FieldType]


@dataclass(frozen=True)
class Schema:
    """All messages and enums by name."""

    messages: Mapping[str, MessageType]
    enums: Mapping[str, Mapping[str, int]]

    def convert(self, type_name: str, text: str, *, quoted: bool) -> Value | None:
        """Returns a scalar or enum value, None if the text, `quoted` or not, spells none."""
        if type_name == "string" or quoted:
            return text if type_name == "string" and quoted else None
        if type_name == "bool":
            return _BOOLS.get(text)
        if type_name in ("float", "double"):
            return _convert_float(text)
        number = numerals.literal(text)
        if type_name in _RANGES:
            low, high = _RANGES[type_name]
            return number if number is not None and low <= number <= high else None
        # An enum value is written by name; its number is legal too.
        names = self.enums[type_name]
        return text if text in names else next((n for n, i in names.items() if i == number), None)


def parse_schema(table: str) -> Schema:
    """Reads a table of messages.

    Each line is `message NAME`, `enum NAME: WORD=NUMBER ...`, a comment after `#`, or a field of
    the message above it: `name: type = default | oneof ! replacement`. A star behind the type
    means repeated, `!` deprecated.

    Raises:
        ValueError: a line has another form.
    """
    fields: dict[str, dict[str, FieldType]] = {}
    enums: dict[str, dict[str, int]] = {}
    current: dict[str, FieldType] = {}
    for line in table.splitlines():
        if line.startswith("message "):
            current = fields.setdefault(line.removeprefix("message "), {})
        elif line.startswith("enum "):
            name, _, values = line.removeprefix("enum ").partition(": ")
            pairs = (value.split("=") for value in values.split())
            enums.setdefault(name, {}).update({word: int(number) for word, number in pairs})
        elif line and not line.startswith("#"):
            field = _parse_field(line.strip())
            current[field.name] = field
    schema = Schema({}, enums)
    typed = {
        name: _typed(message_fields.values(), schema) for name, message_fields in fields.items()
    }
    return Schema(
        {name: MessageType(name, message_fields) for name, message_fields in typed.items()}, enums
    )


def _parse_field(line: str) -> FieldType:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise ValueError(f"not a field of a message: {line}")
    return FieldType(
        name=match["name"],
        type=match["type"],
        repeated=bool(match["star"]),
        default=match["default"],
        oneof=match["oneof"],
        deprecated=bool(match["deprecated"]),
        replacement=match["replacement"],
    )


def _typed(fields: Iterable[FieldType], schema: Schema) -> dict[str, FieldType]:
    """Returns the fields with defaults of their types, once all enums are known."""
    result = {}
    for entry in fields:
        text = str(entry.default or "")
        default: Value | None = None
        if entry.type == "string":
            default = text.strip('"')
        elif entry.type in schema.enums:
            default = text or next(iter(schema.enums[entry.type]))
        elif entry.type in SCALARS:
            default = schema.convert(entry.type, text or "0", quoted=False)
        is_message = entry.type not in SCALARS and entry.type not in schema.enums
        result[entry.name] = replace(entry, default=default, is_message=is_message)
    return result


def _convert_float(text: str) -> float | None:
    if _FLOAT.fullmatch(text) or _NAMED_FLOAT.fullmatch(text):
        # `inf` ends in an f that belongs to it, `1.0f` and `inff` in one that marks a float.
        return float(text[:-1] if text[-1] in "fF" and text[-3:].lower() != "inf" else text)
    return None


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
    """Decodes syntax trees by a schema; if `strict`, it refuses a second value of a field."""

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
        """Merges `block`: scalars and choices replace, messages merge, lists append."""
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
        field_type = message.type.fields.get(node.name)
        if field_type is not None:
            return field_type
        problem = f"{message.type.name} has no field {node.name!r}"
        fix = self._nearest_field(message, node.name)
        if node.name.startswith("["):
            problem = f"the extension {node.name} belongs to another program"
            fix = "stillbox reads configs without extensions"
        raise UserError(problem, where=node.where, fix=fix)

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

    def _replaced(self, node: Field, problem: str) -> None:
        if self._strict:
            raise UserError(f"{node.name} {problem}", where=node.where, fix="keep one of them")
        self.warnings.append(f"{node.where}: {node.name} {problem}")

    def _set(self, message: Message, node: Field, kind: FieldType, value: Scalar | Block) -> None:
        existing = message.entries.setdefault(node.name, [])
        if kind.is_message != isinstance(value, Block):
            wanted = f"one value: {kind.type}"
            if kind.is_message:
                wanted = f"a message: {node.name} {{ ... }}"
            fix = None if kind.is_message else f"write {node.name}: VALUE"
            raise UserError(f"{node.name} holds {wanted}", where=value.where, fix=fix)
        if isinstance(value, Scalar):
            if existing and not kind.repeated:
                self._replaced(
                    node, f"is set again; this value replaces that of {existing[0].where}"
                )
                existing.clear()
            existing.append(Entry(self._scalar(kind, value), node.where))
        elif kind.type == "opaque":
            # The content is not decoded: nothing reads it.
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
            if kind.type in SCALARS and not value.quoted:
                shown = numerals.too_long(shown) or shown
            article = "an" if kind.type[0] in "aeiou" else "a"
            problem = f"{kind.name}: {shown} is not {article} {kind.type}"
            fix = nearest(value.text, enum) if enum else SCALARS[kind.type]
            raise UserError(problem, where=value.where, fix=fix)
        return result
