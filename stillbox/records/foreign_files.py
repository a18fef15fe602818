"""Guarded readers of annotation files: XML, JSON, YAML, CSV, lists, and the numbers in them.

A file that is malformed, nested too deep or built to grow in memory is reported in one sentence
with file and line. Text is UTF-8, or UTF-16 with a byte order mark.
"""

import codecs
import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias
from xml.parsers import expat

from stillbox import numerals
from stillbox.errors import UserError
from stillbox.printing import SURROGATE
from stillbox.textformat.yaml_tree import Plain, compose, read_text_file
from stillbox.untrusted import open_untrusted, read_untrusted

Json: TypeAlias = Plain
"""Content of a JSON or YAML file."""

LONGEST_SIDE = 2**31
"""An annotation that claims as many pixels or more has no usable size."""
MAX_ANNOTATION_BYTES = 2**31
"""Greatest size of an annotation file: the file of COCO's 118,287 images takes a fifth of it."""
# Trees of XML take ten times the memory of their text.
_MOST_XML_BYTES = 2**29
# Rows of CSV are read one by one: the 14.6 million of Open Images take a quarter of it.
_MOST_CSV_BYTES = 2**33
_LONGEST_ROW = 2**20
MAX_LIST_BYTES = 2**29
"""Greatest size of a list of images, or of lines of JSON: a name for each of millions."""
_HEAD_BYTES = 65536
_AGAIN = "mend the file, or export the data set again"


def read_head(path: Path) -> bytes:
    """Returns the first 64 KiB of a file."""
    with open_untrusted(path, most=None, where=str(path)) as file:
        return file.read(_HEAD_BYTES)


_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decode_text(data: bytes) -> str:
    """Returns text in UTF-8, or in UTF-16 with a byte order mark, without the mark.

    Raises:
        UnicodeDecodeError: it is another encoding.
    """
    return data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")


# The codecs of Python that expat does not have; others of Python's are no encodings of text.
_ENCODINGS = ("gb2312", "gbk", "gb18030", "big5", "shift_jis", "cp932", "euc-jp", "euc-kr", "cp949")
_DECLARATION = re.compile(rb"<\?xml[^>]*encoding\s*=\s*[\"']([\w.-]{1,40})[\"'][^>]*\?>")


def _xml_text(content: bytes) -> bytes | str:
    """Returns XML that expat reads: without blanks in front, in an encoding that it has."""
    content = content.lstrip(b" \t\r\n")
    declared = _DECLARATION.match(content)
    if declared and (name := declared[1].decode().lower()) in _ENCODINGS:
        return content[declared.end() :].decode(name)
    return content


class _Ended(Exception):  # noqa: N818 - it is no error
    """The prolog has ended."""


def _declares_entities(content: bytes | str) -> bool:
    """Tells whether XML declares entities before its root, by which few bytes become many."""

    def ended(*_: object) -> None:
        raise _Ended

    parser, entities = expat.ParserCreate(), False

    def declared(*_: object) -> None:
        nonlocal entities
        entities = True
        raise _Ended

    parser.StartElementHandler, parser.EntityDeclHandler = ended, declared
    with suppress(_Ended, expat.ExpatError):  # said by the parser that follows
        parser.Parse(content, True)
    return entities


def read_xml(path: Path) -> ElementTree.Element:
    """Returns the root element of an XML file.

    Raises:
        UserError: it cannot be read, it is not XML, or it declares entities.
    """
    content = read_untrusted(path, most=_MOST_XML_BYTES, where=str(path))
    try:
        text = _xml_text(content)
        if not _declares_entities(text):
            return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        problem = f"this is not XML: {error.msg}"
        raise UserError(problem, where=f"{path}:{error.position[0]}", fix=_AGAIN) from error
    except (ValueError, LookupError) as error:  # an encoding that does not exist
        problem = f"this is not XML: {error}"
        raise UserError(problem, where=str(path), fix=_AGAIN) from error
    problem = "the XML declares entities, which can multiply it"
    raise UserError(problem, where=str(path), fix="write their texts in their places")


def xml_root(head: bytes) -> str:
    """Returns the name of the root element from the first bytes of a file, or an empty text."""
    try:
        text = _xml_text(head)
        file = io.StringIO(text) if isinstance(text, str) else io.BytesIO(text)
        _, root = next(ElementTree.iterparse(file, events=("start",)))
    except (ElementTree.ParseError, ValueError, LookupError, StopIteration):
        return ""
    return root.tag.rpartition("}")[2]


def read_json(path: Path) -> Json:
    """Returns the content of a JSON file.

    Raises:
        UserError: it cannot be read, it is not JSON, or it is nested too deep.
    """
    if read_head(path)[:2] == b"\0\0":
        # A file that begins with zeros would be read as UTF-32, which takes long.
        problem = "this is not JSON: it begins with zeros"
        raise UserError(problem, where=str(path), fix=_AGAIN)
    return parse_json(read_untrusted(path, most=MAX_ANNOTATION_BYTES, where=str(path)), str(path))


def parse_json(content: bytes | str, where: str) -> Json:
    """Returns the content of JSON text at `where`, which is a file or a line of it."""
    try:
        if isinstance(content, bytes):
            content = content.decode(json.detect_encoding(content), "surrogatepass")
        parsed: Json = json.loads(content, parse_int=numerals.json_whole)
        escaped = "\\ud" in content or "\\uD" in content
        if escaped or (not content.isascii() and SURROGATE.search(content)):
            return without_surrogates(parsed)
        return parsed
    except json.JSONDecodeError as error:
        line = f"{where}:{error.lineno}" if error.lineno > 1 or ":" not in where else where
        problem = f"this is not JSON: {error.msg}"
        raise UserError(problem, where=line, fix=_AGAIN) from error
    except RecursionError as error:
        raise UserError("the JSON is nested too deep", where=where, fix=_AGAIN) from error
    except UnicodeDecodeError as error:
        raise UserError(f"this is not JSON: {error}", where=where, fix=_AGAIN) from error
    except ValueError as error:
        raise UserError(f"the JSON has {error}", where=where, fix=_AGAIN) from error


def without_surrogates(content: Json) -> Json:
    """Replaces lone surrogates, which JSON and YAML can spell and no record can hold, by `?`."""
    whole: Json = json.loads(json.dumps(content, ensure_ascii=False).encode(errors="replace"))
    return whole


def json_object(value: Json) -> dict[str, Json]:
    """Returns an object, empty if the value is another one."""
    return value if isinstance(value, dict) else {}


def json_list(value: Json) -> list[Json]:
    """Returns a list, empty if the value is another one."""
    return value if isinstance(value, list) else []


def name_text(value: Json) -> str:
    """Returns the name of a class: text as it is, another value as JSON spells it."""
    return value if isinstance(value, str) else json.dumps(value)


def read_yaml(path: Path) -> Json:
    """Returns the content of a YAML file, each scalar as its characters: names may be `yes`.

    Raises:
        UserError: `compose` refuses it.
    """
    text = read_text_file(path, fix="give the YAML file of a data set")
    return yaml_content(text, str(path))


def yaml_content(text: str, file: str) -> Json:
    """Returns the content of YAML text as `read_yaml` does."""
    return without_surrogates(compose(text, file, as_text=True).plain())


def csv_header(path: Path) -> tuple[tuple[str, ...], str]:
    """Returns the first row of a CSV file and its separator; no columns if it is not text."""
    head = read_head(path)
    try:
        text = decode_text(head if len(head) < _HEAD_BYTES else head[: head.rfind(b"\n") + 1])
        # Lines end as for `read_csv`.
        first = next(iter(io.StringIO(text, newline="")), "")
        separator = max(",;\t|", key=first.count)
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        return tuple(next(rows, ())), separator
    except (ValueError, csv.Error):
        return (), ","


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line number and values by column of each row of a CSV file with a header.

    Raises:
        UserError: it is not CSV, or a row is longer or shorter than the header.
    """
    encoding = "utf-16" if read_head(path).startswith(_UTF_16) else "utf-8-sig"
    separator = csv_header(path)[1]
    with (
        open_untrusted(path, most=_MOST_CSV_BYTES, where=str(path)) as content,
        io.TextIOWrapper(content, encoding=encoding, newline="") as file,
    ):
        # A line that goes on after so many characters is a row of another length.
        lines = iter(lambda: file.readline(_LONGEST_ROW), "")
        reader = csv.DictReader(lines, delimiter=separator, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(
                        f"the row has not the {len(reader.fieldnames or ())} columns of the header",
                        where=f"{path}:{reader.line_num}",
                        fix=_AGAIN,
                    )
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            problem = f"this is not CSV: {error}"
            raise UserError(problem, where=f"{path}:{reader.line_num + 1}", fix=_AGAIN) from error


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Returns number and text of the lines of a text file that are not blank.

    Raises:
        UserError: it is neither UTF-8 nor UTF-16 text.
    """
    try:
        text = decode_text(read_untrusted(path, most=MAX_LIST_BYTES, where=str(path)))
    except UnicodeDecodeError as error:
        problem = f"this is not UTF-8 text (byte {error.start})"
        raise UserError(problem, where=str(path), fix="save it as UTF-8") from error
    # Not splitlines, which also splits at separators that JSON text may contain.
    lines = enumerate(io.StringIO(text, newline=None), start=1)
    return [(place, line.strip()) for place, line in lines if line.strip()]


def read_lines(path: Path) -> list[str]:
    """Returns the lines of `numbered_lines` without their numbers."""
    return [line for _, line in numbered_lines(path)]


# Three digits behind the comma may be thousands: 1,024 is no number of one meaning.
_DECIMAL_COMMA = re.compile(r"\s*[+-]?(0?,[0-9]+|[0-9]+,([0-9]{1,2}|[0-9]{4,}))\s*")


def number(value: object) -> float:
    """Returns the number of `numerals.number`, which may be spelt with a decimal comma."""
    if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
        value = value.replace(",", ".")
    return numerals.number(value)


def parse_int(value: object) -> int:
    """Returns what `number` finds as an integer; 0 for NaN and for sizes beyond any image."""
    whole = number(value)
    return int(whole) if abs(whole) < LONGEST_SIDE else 0
