"""Message types, read from tables, and the conversion of scalars to them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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
_INTEGER = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]+)|(\d+))")
# More digits than any range has; Python itself refuses to read thousands of them.
_MOST_DIGITS = 100
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
        """Returns a scalar of that type, None where the text does not spell one.

        Args:
            type_name: a scalar or an enum.
            text: a word, a number, or what stands between quotes.
            quoted: it stands between quotes.
        """
        if type_name == "string" or quoted:
            return text if type_name == "string" and quoted else None
        if type_name == "bool":
            return _BOOLS.get(text)
        if type_name in ("float", "double"):
            return _convert_float(text)
        number = _convert_integer(text)
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
    typed = {name: _typed(own.values(), schema) for name, own in fields.items()}
    return Schema({name: MessageType(name, own) for name, own in typed.items()}, enums)


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
    for field in fields:
        text = str(field.default or "")
        default: Value | None = None
        if field.type == "string":
            default = text.strip('"')
        elif field.type in schema.enums:
            default = text or next(iter(schema.enums[field.type]))
        elif field.type in SCALARS:
            default = schema.convert(field.type, text or "0", quoted=False)
        is_message = field.type not in SCALARS and field.type not in schema.enums
        result[field.name] = replace(field, default=default, is_message=is_message)
    return result


def _convert_float(text: str) -> float | None:
    if _FLOAT.fullmatch(text) or _NAMED_FLOAT.fullmatch(text):
        # `inf` ends in an f that belongs to it, `1.0f` and `inff` in one that marks a float.
        return float(text[:-1] if text[-1] in "fF" and text[-3:].lower() != "inf" else text)
    return None


def _convert_integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    if match is None or len(text) > _MOST_DIGITS:
        return None
    sign, hexadecimal, octal, decimal = match.groups()
    base = 16 if hexadecimal else 8 if octal else 10
    return int(sign + (hexadecimal or octal or decimal), base)
