"""The text form of label maps: `StringIntLabelMap` as protobuf text."""

from dataclasses import dataclass

from stillbox.errors import UserError
from stillbox.textformat.decoder import Decoder, Message
from stillbox.textformat.parser import parse
from stillbox.textformat.schema import parse_schema

SHAPE = "write one `item { id: 1 name: 'dog' }` for every class"

_SCHEMA = parse_schema("""
message StringIntLabelMap
  item: StringIntLabelMapItem*

message StringIntLabelMapItem
  name: string
  id: int32
  display_name: string
  keypoints: opaque*
  ancestor_ids: int32*
  descendant_ids: int32*
  frequency: LVISFrequency
  instance_count: int32

enum LVISFrequency: UNSPECIFIED=0 FREQUENT=1 COMMON=2 RARE=3
""")


@dataclass(frozen=True)
class LabelMapItem:
    """One class."""

    id: int
    """1 or more."""
    name: str
    """Class text of records, unless they carry display names."""
    display_name: str = ""
    """Readable name; may be empty."""


def read_items(text: str, file: str) -> list[tuple[LabelMapItem, str]]:
    """Returns the items of a label map, each with its file:line:column.

    Raises:
        UserError: the text is no label map.
    """
    try:
        root = Decoder(_SCHEMA, strict=True).decode(parse(text, file), "StringIntLabelMap")
        return [(_item(entry.value), entry.where) for entry in root.entries.get("item", [])]
    except UserError as error:
        raise UserError(error.what, where=error.where, fix=error.fix or SHAPE) from error


def _item(message: Message) -> LabelMapItem:
    values = {name: entries[0].value for name, entries in message.entries.items()}
    name, display_name = values.get("name", ""), values.get("display_name", "")
    if "id" not in values:
        raise UserError("the item has no id", where=message.where)
    if not name and not display_name:
        raise UserError("the item has neither name nor display_name", where=message.where)
    return LabelMapItem(values["id"], name or display_name, display_name)


def quoted(text: str) -> str:
    """Returns a string literal that reads back as `text`."""
    for plain, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f"'{text}'"
