"""The types of the messages, read from the tables."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SCALARS = ("bool", "int32", "uint32", "float", "double", "string")
"""Types that are neither enum nor message; `opaque` is a message of unknown content."""

_FIELD = re.compile(
    r"(?P<name>\w+): (?P<type>[\w.]+)(?P<star>\*?)(?: = (?P<default>\S+))?"
    r"(?: \| (?P<oneof>\w+))?(?P<deprecated> !(?: (?P<replacement>.+))?)?"
)


@dataclass(frozen=True, kw_only=True)
class FieldType:
    """One field of a message."""

    name: str
    type: str
    """A scalar, `opaque`, or the name of an enum or a message."""
    repeated: bool
    default: str | None
    """Explicit default as written; None: zero, empty, or the first value of the enum."""
    oneof: str | None
    """The choice that it belongs to."""
    deprecated: bool
    replacement: str | None
    """What to write instead of a deprecated field; None: whoever reads the message says so."""


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


def parse_tables(tables: Iterable[str]) -> Schema:
    """Reads tables in the notation of `textproto/tables`."""
    fields: dict[str, dict[str, FieldType]] = {}
    enums: dict[str, dict[str, int]] = {}
    current: dict[str, FieldType] = {}
    for line in (line for table in tables for line in table.splitlines() if line):
        if line.startswith("message "):
            current = fields.setdefault(line.removeprefix("message "), {})
        elif line.startswith("enum "):
            name, _, values = line.removeprefix("enum ").partition(": ")
            pairs = (value.split("=") for value in values.split())
            enums.setdefault(name, {}).update({word: int(number) for word, number in pairs})
        else:
            field = _parse_field(line.strip())
            current[field.name] = field
    messages = {name: MessageType(name, content) for name, content in fields.items()}
    return Schema(messages, enums)


def _parse_field(line: str) -> FieldType:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise ValueError(f"not in the tables' notation: {line}")
    return FieldType(
        name=match["name"],
        type=match["type"],
        repeated=bool(match["star"]),
        default=match["default"],
        oneof=match["oneof"],
        deprecated=bool(match["deprecated"]),
        replacement=match["replacement"],
    )


@functools.cache
def load_schema() -> Schema:
    """Returns the schema of `pipeline.config`."""
    # Here, so that the 1100 lines of tables are read by those who open such a file only.
    from stillbox.experiment.textproto.tables import TABLES

    return parse_tables(TABLES)
