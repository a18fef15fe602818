"""The page of the whole language: `python -m stillbox.experiment.pipeline_config.reference`.

What it says of a field is what the reader did with it (`probing.py`).
"""

import re
import sys
from collections.abc import Iterable, Iterator

from stillbox.experiment.pipeline_config.messages import ROOT, load_schema
from stillbox.experiment.pipeline_config.probing import Fate, Path, fates, read_messages
from stillbox.textformat.schema import FieldType, MessageType

_HEADER = """\
# The language of pipeline.config

Made by `python -m stillbox.experiment.pipeline_config.reference > docs/pipeline_config.md`, which
sets every field to another value than its default and writes down what the reader does:

- **honoured**: the experiment changes, in the fields that are named (see
  [All fields](fields.md)); `section` leads to a message of its own;
- **no effect**: the field is accepted and changes nothing, for the reason given; reading a file
  that sets it says so too;
- **refused**: reading stops with file, line, this reason and a remedy. A value that is the default
  is never refused.
"""
_HEAD = ("| field | type and default | | where to, or why |", "|---|---|---|---|")
_EFFECTLESS = re.compile(r"^\S+ (is deprecated and )?has no effect here: ")
_PATHS_SHOWN = 4


def language_reference() -> str:
    """Returns a Markdown page: one section for each message, one row for each field."""
    places: dict[str, list[Path]] = {}
    for path, message in read_messages():
        places.setdefault(message.name, []).append(path)
    messages = load_schema().messages
    sections = "".join(_section(messages[name], paths) for name, paths in places.items())
    return _HEADER + _summary() + sections + _unread(places)


def _summary() -> str:
    words = [
        _word(fate, load_schema().messages[message].fields[name])
        for message, fields in fates().items()
        for name, fate in fields.items()
    ]
    counts = ", ".join(
        f"{sum(word in group for word in words)} {group[0]}"
        for group in (("honoured", "section"), ("no effect",), ("refused",))
    )
    return f"\nOf {len(words)} fields that an SSD's file can hold: {counts}.\n"


def _section(message: MessageType, paths: list[Path]) -> str:
    where = ", ".join(f"`{'.'.join(path)}`" for path in paths if path) or "the whole file"
    rows = [
        f"| `{kind.name}` | {_type(kind)} | {_word(fate, kind)} | {_explain(fate, kind)} |"
        for kind, fate in ((message.fields[n], f) for n, f in fates()[message.name].items())
    ]
    table = "\n".join(
        ["| field | type and default | | where to, or why |", "|---|---|---|---|", *rows]
    )
    return f"\n## {message.name}\n\nAt {where}.\n" + (f"\n{table}\n" if rows else "\nNo fields.\n")


def _type(kind: FieldType) -> str:
    schema = load_schema()
    many = "repeated " if kind.repeated else ""
    if kind.is_message:
        return f"{many}message"
    default = kind.default
    shown = str(default).lower() if isinstance(default, bool) else default
    # A repeated field has no default, and an empty text needs no mention.
    known = "" if kind.repeated or shown == "" else f"`{shown}`"
    if kind.type in schema.enums:
        names = ", ".join(f"`{name}`" for name in schema.enums[kind.type])
        return f"one of {names}; {known}"
    return ", ".join(filter(None, (f"{many}{kind.type}", known)))


def _word(fate: Fate, kind: FieldType) -> str:
    if fate.taken and kind.type in fates():
        return "section"
    if fate.honoured:
        return "honoured"
    if fate.ignored:
        return "no effect"
    if fate.refused:
        return "refused"
    raise AssertionError(f"{kind.name} is read and nothing follows from it")


def _explain(fate: Fate, kind: FieldType) -> str:
    word = _word(fate, kind)
    parts = []
    if word == "section":
        parts.append(f"[{kind.type}](#{re.sub('[^a-z0-9]', '', kind.type.lower())})")
    elif word == "honoured":
        parts.append(", ".join(f"`{path}`" for path in _shorten(fate.honoured)))
    elif word == "no effect":
        # The field and the word stand beside it already.
        said = (
            re.sub(r"^\S+ (is deprecated and )?has no effect here: ", "", s) for s in fate.ignored
        )
        parts.append("; ".join(said))
    parts += _refusals(fate, kind, word)
    return ". ".join(parts).replace("|", "\\|")


def _refusals(fate: Fate, kind: FieldType, word: str) -> Iterator[str]:
    """Yields why values are refused, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for value, reason in fate.refused.items():
        by_reason.setdefault(reason, []).append(value.strip(" :{}"))
    for reason, values in by_reason.items():
        reason = reason.removeprefix("is ")
        if word == "refused" and kind.type not in load_schema().enums:
            yield reason
        elif kind.type in load_schema().enums or kind.type == "string":
            yield f"{', '.join(f'`{value}`' for value in values)} refused: {reason}"
        else:
            yield f"With other feature extractors refused: {reason}"


def _shorten(paths: Iterable[str]) -> list[str]:
    """Names sections instead of all their fields where another kind was chosen."""
    kinds = {path.rpartition(".")[0] for path in paths if path.endswith(".kind")}
    shown = dict.fromkeys(
        next((kind for kind in sorted(kinds) if path.startswith(f"{kind}.")), path)
        for path in paths
    )
    if len(shown) > _PATHS_SHOWN:
        shown = dict.fromkeys(".".join(path.split(".")[:2]) for path in shown)
    return list(shown)


def _unread(read: Iterable[str]) -> str:
    """Returns a line for each message that only refused or ignored fields lead to."""
    read, lines = set(read), []
    for name, through in _reachable().items():
        if name in read:
            continue
        fields = load_schema().messages[name].fields
        count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        lines.append(f"- `{name}` ({count}), through `{through}`")
    return (
        "\n## Messages that are not read\n\n"
        "A field above that is refused, or has no effect, is all that leads to them.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _reachable() -> dict[str, str]:
    """Returns every message of the language with the first field that leads to it."""
    schema, found, left = load_schema(), {ROOT: ""}, [ROOT]
    while left:
        name = left.pop(0)
        for kind in schema.messages[name].fields.values():
            if kind.type in schema.messages and kind.type not in found:
                found[kind.type] = f"{name}.{kind.name}"
                left.append(kind.type)
    return found


if __name__ == "__main__":
    sys.stdout.write(language_reference())
