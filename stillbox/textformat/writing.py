"""Writes a decoded message as text format."""

import json
from collections.abc import Iterator

from stillbox.textformat.messages import Message, Value


def message_text(message: Message) -> str:
    """Returns text that decodes to the same message, one field a line."""
    return "".join(f"{line}\n" for line in _lines(message))


def _lines(message: Message) -> Iterator[str]:
    for name, entries in message.entries.items():
        quoted = message.type.fields[name].type == "string"
        for entry in entries:
            if isinstance(entry.value, Message):
                yield f"{name} {{"
                yield from (f"  {line}" for line in _lines(entry.value))
                yield "}"
            else:
                yield f"{name}: {_spell(entry.value, quoted=quoted)}"


def _spell(value: Value, *, quoted: bool) -> str:
    if quoted:
        # JSON's escapes are text format's too, but for half characters, which no string has.
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)
