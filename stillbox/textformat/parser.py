"""Parses protobuf text format as a syntax tree with positions: names and values without types.

The lexer follows the Text Format Language Specification (protobuf.dev).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn, cast

from stillbox.errors import UserError
from stillbox.textformat.foreign_text import explain

TokenKind = Literal["name", "number", "string", "symbol", "end"]

# A string is matched possessively: going back would take a hundred times the memory of its text.
_TOKEN = re.compile(
    r"""
      (?P<space>  [ \t\r\n\f\v]+ | \#[^\n]* )
    | (?P<number> [+-]?(?:\d|\.\d)[0-9A-Za-z_.]*(?:(?<=[eE])[+-]\d+[0-9A-Za-z_.]*)?
                | -[A-Za-z]+ )
    | (?P<name>   [A-Za-z_][A-Za-z0-9_]* )
    | (?P<string> "(?:[^"\\\n]++|\\.)*+" | '(?:[^'\\\n]++|\\.)*+' )
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
            yield Token(cast(TokenKind, kind), word, where, first, indent)
        offset = match.end()
        if newlines := word.count("\n"):
            line += newlines
            line_start = match.start() + word.rindex("\n") + 1
    yield Token("end", "end of file", f"{file}:{line}:{offset - line_start + 1}")


def _unreadable(character: str, where: str) -> UserError:
    if character in "\"'":
        problem = "the string that starts here has no end on its line"
        return UserError(problem, where=where, fix=f"close it with {character}")
    if character in _CURLY_QUOTES:
        return UserError(f"{character} is no quotation mark here", where=where, fix="write \" or '")
    problem = f"unexpected character {character!r}"
    return UserError(problem, where=where, fix="fields are written `name: value` or `name { ... }`")


def unquote(token: Token) -> str:
    """Returns the text of a string token, escapes resolved.

    Raises:
        UserError: a NUL byte, an unknown escape, a Windows path with backslashes that would be
            escapes, or bytes that are not UTF-8.
    """
    if "\0" in token.text:
        # As protobuf's own reader in C++. The escape is text as any other.
        problem, fix = (
            "the string has a NUL byte",
            r"write \0 if it is meant, or copy the file again",
        )
        raise UserError(problem, where=token.where, fix=fix)
    if _WINDOWS_PATH.match(token.text):
        # Some escapes spell a line break, and such a path would fail much later.
        problem = f"in {token.text} backslashes start escapes, such as \\n for a line break"
        raise UserError(problem, where=token.where, fix="write " + token.text.replace("\\", "/"))

    def replace(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, letter = match.groups()
        if octal:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        if short or long:
            return chr(int(short or long, 16)).encode()
        if letter[0] not in _LETTERS:
            problem = f"unknown escape \\{letter.decode(errors='replace')} in {token.text}"
            raise UserError(problem, where=token.where, fix=_BACKSLASH)
        return bytes([_LETTERS[letter[0]]])

    try:
        # Escapes can spell single bytes of a UTF-8 sequence, so they are resolved before decoding.
        return _ESCAPE.sub(replace, token.text[1:-1].encode()).decode()
    except (UnicodeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{token.text} is not UTF-8 text", where=token.where) from error


MAX_DEPTH = 100
"""Nesting beyond this is refused, as in protobuf itself."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, a word or a string."""

    text: str
    """The word or number as written; a string without quotes, escapes and seams."""
    quoted: bool
    """Whether the value was a string."""
    where: str
    """file:line:column."""


@dataclass(frozen=True, slots=True)
class Field:
    """A name with its value, or with several in a list."""

    name: str
    """As written; an extension keeps its brackets."""
    values: "tuple[Scalar | Block, ...]"
    """One value, or several of `[a, b]`."""
    where: str
    """file:line:column of the name."""
    is_list: bool = False
    """Written in brackets."""


@dataclass(frozen=True, slots=True)
class Block:
    """The fields between two braces, or of the whole file."""

    fields: tuple[Field, ...]
    where: str
    """file:line:column of the opening brace."""


def parse(text: str, file: str) -> Block:
    """Returns the syntax tree of `text`; `file` is only named in positions.

    Raises:
        UserError: the text is not protobuf text format; says file, line and column.
    """
    try:
        parser = _Parser(tokenize(text, file))
        return Block(parser.fields(closing=None, depth=0), f"{file}:1:1")
    except UserError as error:
        raise explain(error, text) from None


class _Parser:
    """Recursive descent over tokens that end with an `end`; they are read as they are needed."""

    def __init__(self, tokens: Iterator[Token]) -> None:
        self._tokens, self._next = tokens, next(tokens)
        # The first brace that is unclosed by the indentation, and the token after its block.
        self._suspects: tuple[Token, Token] | None = None
        self._indented = True

    def fields(self, closing: Token | None, depth: int) -> tuple[Field, ...]:
        """Reads fields up to the end of the block that `closing` opens, or of the file."""
        # Braces and angle brackets mean the same but do not close each other.
        end = {"{": "}", "<": ">"}[closing.text] if closing else "end of file"
        if closing and depth > MAX_DEPTH:
            raise UserError(f"nested deeper than {MAX_DEPTH} levels", where=closing.where)
        result: list[Field] = []
        while self._peek().text != end or self._peek().kind == "string":
            if closing and self._peek().kind == "end":
                raise self._unclosed(closing, end)
            if closing and self._peek().first and self._peek().indent <= closing.indent:
                self._suspect(closing, first=not result)
            result.append(self._field(depth))
            if self._peek().text in (",", ";"):
                self._take()
        self._take()
        return tuple(result)

    def _suspect(self, closing: Token, *, first: bool) -> None:
        """Records a block if the field after it is indented no further than the block itself."""
        # In a file without indentation this holds of the first field already.
        self._indented = self._indented and not first
        if self._suspects is None:
            self._suspects = closing, self._peek()

    def _unclosed(self, closing: Token, end: str) -> UserError:
        problem, where = f"the {closing.text!r} that opens here is never closed", closing.where
        if self._suspects is None or not self._indented:
            return UserError(problem, where=where, fix=f"add the missing {end!r}")
        # Braces pair from the inside, so the outermost one is left over whichever is missing.
        opening, following = self._suspects
        problem = f"{problem}, or one inside it: by the indentation that of {opening.where}"
        fix = f"add the missing {end!r} before {following.text} ({following.where})"
        return UserError(problem, where=where, fix=fix)

    def _field(self, depth: int) -> Field:
        token = self._take()
        if token.text in ("}", ">", "]") and token.kind == "symbol":
            fix = "take it out, or look for one too many above it"
            raise UserError(f"this {token.text!r} closes nothing", where=token.where, fix=fix)
        if token.kind != "name" and token.text != "[":
            _unexpected(token, "a field name")
        name = self._extension_name() if token.text == "[" else token.text
        colon = self._accept(":")
        following = self._peek()
        if not colon and following.text not in ("{", "<", "["):
            _unexpected(following, f"':' or '{{' after {name}")
        if following.text != "[" or following.kind == "string":
            return Field(name, (self._value(depth),), token.where)
        return Field(name, self._list(depth), token.where, is_list=True)

    def _extension_name(self) -> str:
        words = []
        while not self._accept("]"):
            token = self._take()
            if token.kind != "name" and token.text not in (".", "/"):
                _unexpected(token, "the name of an extension, then ']'")
            words.append(token.text)
        return f"[{''.join(words)}]"

    def _list(self, depth: int) -> "tuple[Scalar | Block, ...]":
        self._take()
        if self._accept("]"):
            return ()
        values = [self._value(depth)]
        while self._accept(","):
            values.append(self._value(depth))
        if not self._accept("]"):
            _unexpected(self._peek(), "',' or ']' in a list")
        return tuple(values)

    def _value(self, depth: int) -> "Scalar | Block":
        token = self._take()
        if token.kind == "string":
            text = unquote(token)
            # Strings that stand side by side are one string.
            while self._peek().kind == "string":
                text += unquote(self._take())
            return Scalar(text, True, token.where)
        if token.kind in ("name", "number"):
            return Scalar(token.text, False, token.where)
        if token.text in ("{", "<"):
            return Block(self.fields(closing=token, depth=depth + 1), token.where)
        return _unexpected(token, "a value")

    def _peek(self) -> Token:
        return self._next

    def _take(self) -> Token:
        token = self._next
        # The end token is never consumed.
        self._next = next(self._tokens, token)
        return token

    def _accept(self, symbol: str) -> bool:
        token = self._peek()
        if token.kind != "symbol" or token.text != symbol:
            return False
        self._take()
        return True


def _unexpected(token: Token, wanted: str) -> NoReturn:
    shown = token.text if token.kind == "end" else repr(token.text)
    raise UserError(f"found {shown} where {wanted} should stand", where=token.where)
