"""The lexer of protobuf's text format (protobuf.dev, Text Format Language Specification)."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from stillbox.errors import UserError

TokenKind = Literal["name", "number", "string", "symbol", "end"]

_TOKEN = re.compile(
    r"""
      (?P<space>  [ \t\r\n\f\v]+ | \#[^\n]* )
    | (?P<number> [+-]?(?:\d|\.\d)[0-9A-Za-z_.]*(?:(?<=[eE])[+-]\d+[0-9A-Za-z_.]*)?
                | -[A-Za-z]+ )
    | (?P<name>   [A-Za-z_][A-Za-z0-9_]* )
    | (?P<string> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | (?P<symbol> [{}<>\[\]:;,./] )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
# A drive, then a backslash that the text format takes for the start of an escape.
_WINDOWS_PATH = re.compile(r"""["'][A-Za-z]:\\(?!\\)""")
_LETTERS = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))
_BACKSLASH = "write a backslash as \\\\, or a path with forward slashes"
_CURLY_QUOTES = "\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb"


class Token(NamedTuple):
    """One word of the text."""

    kind: TokenKind
    text: str
    """As it is written, quotes included."""
    where: str
    """file:line:column of its first character, both counted from 1."""
    first: bool = False
    """Nothing stands before it on its line."""
    indent: int = 0
    """Column of the first token of its line."""


def tokenize(text: str, file: str) -> Iterator[Token]:
    """Yields the tokens of `text` and an `end` token; `file` is only named in positions.

    Raises:
        UserError: an illegal character or an unfinished string.
    """
    offset, line, line_start, indented_line, indent = 0, 1, 0, 0, 0
    while offset < len(text):
        where = f"{file}:{line}:{offset - line_start + 1}"
        # Columns count characters, a tab as one, as editors and protobuf do.
        match = _TOKEN.match(text, offset)
        if match is None:
            raise _unreadable(text[offset], where)
        kind, word = match.lastgroup, match.group()
        if kind != "space":
            first = line != indented_line
            if first:
                indented_line, indent = line, offset - line_start + 1
            yield Token(kind, word, where, first, indent)  # type: ignore[arg-type]
        offset = match.end()
        if newlines := word.count("\n"):
            line += newlines
            line_start = match.start() + word.rindex("\n") + 1
    yield Token("end", "end of file", f"{file}:{line}:{offset - line_start + 1}")


def _unreadable(character: str, where: str) -> UserError:
    if character in "\"'":
        return UserError(
            "the string that starts here has no end on its line",
            where=where,
            fix=f"close it with {character}",
        )
    if character in _CURLY_QUOTES:
        return UserError(f"{character} is no quotation mark here", where=where, fix="write \" or '")
    return UserError(
        f"unexpected character {character!r}",
        where=where,
        fix="fields are written `name: value` or `name { ... }`",
    )


def unquote(token: Token) -> str:
    """Returns the text of a string token, escapes resolved.

    Raises:
        UserError: an unknown escape, a Windows path whose backslashes would be escapes, or bytes
            that are not UTF-8.
    """
    if _WINDOWS_PATH.match(token.text):
        # Some escapes spell a line break, and such a path would fail much later.
        raise UserError(
            f"in {token.text} backslashes start escapes, such as \\n for a line break",
            where=token.where,
            fix="write " + token.text.replace("\\", "/"),
        )

    def replace(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, letter = match.groups()
        if octal:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        if short or long:
            return chr(int(short or long, 16)).encode()
        if letter[0] not in _LETTERS:
            raise UserError(
                f"unknown escape \\{letter.decode(errors='replace')} in {token.text}",
                where=token.where,
                fix=_BACKSLASH,
            )
        return bytes([_LETTERS[letter[0]]])

    try:
        # Escapes can spell single bytes of a UTF-8 sequence, so they are resolved before decoding.
        return _ESCAPE.sub(replace, token.text[1:-1].encode()).decode()
    except (UnicodeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{token.text} is not UTF-8 text", where=token.where) from error
