"""Text for terminals, in which control characters and invisible characters are escaped.

Names of files and classes are untrusted. A control character in one could clear the screen, hide a
line or forge another. A name that is not UTF-8 cannot be printed at all.
"""

import html
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from stillbox.references import Wording, python_words, worded

_SUSPECT = re.compile(r"[^ -~\n]")
SURROGATE = re.compile("[\ud800-\udfff]")
_UNITS = {"PiB": 2**50, "TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def printable(text: str) -> str:
    r"""Returns text in which only lines and visible characters are left; others become `\x1b`.

    Direction marks, characters without width and halves of characters are among the others. What
    the text refers to is named as Python does.
    """
    return _escaped(worded(text), lambda character: ascii(character)[1:-1])


def printable_line(text: str) -> str:
    """Returns text as `printable` does, on one line, with line breaks escaped."""
    return printable(text).replace("\n", "\\n")


def json_text(content: object, *, indent: int | None = 2) -> str:
    """Returns JSON with readable names and without control characters."""
    text = worded(json.dumps(content, indent=indent, ensure_ascii=False, default=str))
    return _escaped(text, lambda character: json.dumps(character)[1:-1])


def html_text(text: str) -> str:
    """Returns text for an HTML page, without characters that change its direction."""
    return html.escape(printable(text))


def file_name_text(name: str) -> str:
    """Returns a file's name as valid UTF-8; undecodable bytes become `%E9`."""
    return SURROGATE.sub(lambda half: f"%{ord(half[0]) & 0xFF:02X}", name)


def count_text(number: int, noun: str) -> str:
    """Returns a number with a noun in singular or plural: `1 box`, `8,000 boxes`."""
    if number != 1:
        noun += "es" if noun.endswith(("s", "x", "sh", "tch", "nch")) else "s"
    return f"{number:,} {noun}"


def size_text(nbytes: float) -> str:
    """Returns a number of bytes in a fitting unit: `1.50 GiB`, `3 MiB`, `1 byte`."""
    for unit, size in _UNITS.items():
        if abs(nbytes) >= size:
            return f"{nbytes / size:,.{2 * (size >= _UNITS['GiB'])}f} {unit}"
    return count_text(round(nbytes), "byte")


def sides_text(sides: Iterable[int]) -> str:
    """Returns height and width: `640 x 512`."""
    return " x ".join(map(str, sides))


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return _SUSPECT.sub(
        lambda match: match[0] if match[0].isprintable() else escape(match[0]), text
    )


class PrintableStream:
    """A text stream that writes only printable text into `stream`, in the words of a surface."""

    def __init__(self, stream: TextIO, wording: Wording) -> None:
        self.stream, self.wording = stream, wording

    def write(self, text: str) -> int:
        """Writes text as `printable` returns it."""
        self.stream.write(printable(worded(text, self.wording)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def own_stream(stream: TextIO) -> TextIO:
    """Returns the stream below a `PrintableStream`, for a writer that escapes text itself."""
    return stream.stream if isinstance(stream, PrintableStream) else stream


def wording_of(stream: TextIO) -> Wording:
    """Returns the words that a stream has for parameters and settings."""
    return stream.wording if isinstance(stream, PrintableStream) else python_words


def make_output_printable(wording: Wording = python_words) -> None:
    """Makes standard output and standard error printable, in the words of a surface."""
    sys.stdout = _printable_stream(sys.stdout, wording)
    sys.stderr = _printable_stream(sys.stderr, wording)


@contextmanager
def printable_output(wording: Wording = python_words) -> Iterator[None]:
    """Makes standard output and standard error printable while it is entered."""
    former = sys.stdout, sys.stderr
    make_output_printable(wording)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former


def _printable_stream(stream: TextIO, wording: Wording) -> TextIO:
    if stream is None:
        return stream
    if isinstance(stream, PrintableStream):
        return stream if wording is python_words else _printable_stream(stream.stream, wording)
    if hasattr(stream, "reconfigure"):  # an encoding may lack what can be printed
        stream.reconfigure(errors="backslashreplace")
    return cast(TextIO, PrintableStream(stream, wording))
