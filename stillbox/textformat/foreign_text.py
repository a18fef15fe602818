"""What people write into text format that other languages have: comments, bare paths, commas.

A parser's error on such a line tells what does not fit, and these functions what was meant.
"""

import re
from collections.abc import Iterator

from stillbox.errors import UserError

_POSITION = re.compile(r":(\d+):(\d+)$")
_STRING = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|#.*""")
_NUMBER = re.compile(r"[+-]?[\d.]+(?:[eE][+-]?\d+)?f?")
# Text with a character that no name and no number has, up to what ends a value.
_BARE = re.compile(
    r"(?P<name>\w+)\s*:\s*(?:\[\s*(?:[^\]\s]+\s*,\s*)*)?"
    r"(?P<text>[^\s\"'{}\[\]<>,;#]*[/\\~@$.:-](?:[^\"'{}\[\]<>,;#]*[^\s\"'{}\[\]<>,;#])?)"
)
_COMMENT = re.compile(r"(?<!:)//|/\*|<!--|--|%|;(?=\s*\w+\s*$)")
_COMMA = re.compile(r"(?<![\w.])[+-]?\d[\d.]*(?:,\d+)+(?:[eE][+-]?\d+)?f?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")


def explain(error: UserError, text: str) -> UserError:
    """Returns an error of the parser, or a clearer one if its line is of another language."""
    position = _POSITION.search(error.where or "")
    if position is None:
        return error
    line = text.split("\n")[int(position[1]) - 1]
    masked = _STRING.sub(lambda match: " " * len(match[0]), line)
    for problem, fix in _faults(masked, int(position[2]) - 1):
        return UserError(problem, where=error.where, fix=fix)
    return error


def _faults(line: str, column: int) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with a line, and the remedy; the likeliest first."""
    for match in _BARE.finditer(line):
        name, text = match["name"], match["text"]
        if match.start() <= column < match.end() and _is_text(text):
            written = text.replace("\\", "/")
            yield f"{name}: {text} has no quotation marks", f'write {name}: "{written}"'
    for match in _COMMENT.finditer(line):
        yield f"{match[0]} begins no comment here", f"write # in place of {match[0]}"
    for match in _COMMA.finditer(line):
        if match.start() <= column < match.end():
            yield f"{match[0]}: a comma ends a value here", _number_fix(match[0])


def _is_text(text: str) -> bool:
    comment = re.search(r"(?<=[^:])//|^//(?:\s|$)|/\*", text)
    first = text.split()[0]
    words = re.search(r"\w", text) is not None
    return words and not (comment or _NUMBER.fullmatch(first) or first.endswith(":"))


def _number_fix(text: str) -> str:
    whole = text.replace(",", "")
    if _THOUSANDS.fullmatch(text):
        decimal = f", or {text.replace(',', '.')} with decimals" if text.count(",") == 1 else ""
        return f"write {whole}{decimal}"
    point = text.replace(".", "").replace(",", ".") if text.count(",") == 1 else whole
    return f"write {point}, with a decimal point"
