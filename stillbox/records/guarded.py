"""Reads annotation files of other people: XML, JSON, YAML, CSV.

A file that is malformed, nested too deep or built to grow in memory ends in one sentence with file
and line.
"""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.records.annotated import LONGEST_SIDE
from stillbox.textformat.text_file import read_text_file
from stillbox.textformat.yaml_tree import compose
from stillbox.untrusted import open_untrusted, read_untrusted

MAX_ANNOTATION_BYTES = 2**31
"""Greatest size of a file of annotations: those of COCO's 118,287 images take a fifth of it."""
# Trees of XML take ten times the memory of their text.
_MOST_XML_BYTES = 2**29
# Rows of CSV are taken one by one: the 14.6 million of Open Images take a quarter of it.
_MOST_CSV_BYTES = 2**33
_LONGEST_ROW = 2**20
MAX_LIST_BYTES = 2**29
"""Greatest size of a list of images, or of lines of JSON: a name for each of millions."""
_HEAD_BYTES = 65536


def read_head(path: Path) -> bytes:
    """Returns the first 64 KiB of a file."""
    with open_untrusted(path, most=None, where=str(path)) as file:
        return file.read(_HEAD_BYTES)


def read_xml(path: Path) -> ElementTree.Element:
    """Returns the root element of an XML file.

    Raises:
        UserError: it cannot be read, it is no XML, or its entities multiply it, which expat
            recognises since 2.4.1.
    """
    content = read_untrusted(path, most=_MOST_XML_BYTES, where=str(path))
    try:
        return ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise UserError(
            f"this is not XML: {error.msg}", where=f"{path}:{error.position[0]}"
        ) from error
    except (ValueError, LookupError) as error:  # an encoding that does not exist
        raise UserError(f"this is not XML: {error}", where=str(path)) from error


def xml_root(head: bytes) -> str:
    """Returns the name of the root element by the first bytes of a file, empty if there is none."""
    parser: Any = ElementTree.XMLPullParser(("start",))
    try:
        parser.feed(head)
        for event in parser.read_events():
            root = event[1]
            return str(root.tag).rpartition("}")[2]
    except (ElementTree.ParseError, ValueError, LookupError):
        pass
    return ""


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Returns the content of a JSON file.

    Raises:
        UserError: it cannot be read, it is no JSON, or it is nested too deep.
    """
    if read_head(path)[:2] == b"\0\0":
        # It would be read as UTF-32, which takes long.
        raise UserError("this is not JSON: it begins with zeros", where=str(path))
    return parse_json(read_untrusted(path, most=MAX_ANNOTATION_BYTES, where=str(path)), str(path))


def parse_json(content: bytes | str, where: str) -> Any:  # noqa: ANN401
    """Returns the content of JSON text at `where`, which is a file or a line of it."""
    try:
        found = json.loads(content)
        # JSON can spell halves of characters, which no file and no record can hold.
        marks: Any = (b"\\ud", b"\\uD") if isinstance(content, bytes) else ("\\ud", "\\uD")
        if any(mark in content for mark in marks):
            found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
        return found
    except json.JSONDecodeError as error:
        line = f"{where}:{error.lineno}" if error.lineno > 1 or ":" not in where else where
        raise UserError(f"this is not JSON: {error.msg}", where=line) from error
    except RecursionError as error:
        raise UserError("the JSON is nested too deep", where=where) from error
    except ValueError as error:  # no UTF-8, or a number of thousands of digits
        raise UserError(f"this is not JSON: {error}", where=where) from error


def read_yaml(path: Path) -> Any:  # noqa: ANN401
    """Returns the content of a YAML file; the names of its mappings are text.

    Raises:
        UserError: `compose` refuses it.
    """
    text = read_text_file(path, fix="give the YAML file of a data set")
    return compose(text, str(path)).plain()


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the rows of a CSV file with a header, each with the number of its line.

    Raises:
        UserError: it is no CSV, or a row is longer or shorter than the header.
    """
    with (
        open_untrusted(path, most=_MOST_CSV_BYTES, where=str(path)) as content,
        io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as file,
    ):
        # A line that goes on after so many characters is a row of another length.
        lines = iter(lambda: file.readline(_LONGEST_ROW), "")
        reader = csv.DictReader(lines, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(
                        f"the row has not the {len(reader.fieldnames or ())} columns of the header",
                        where=f"{path}:{reader.line_num}",
                    )
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(
                f"this is not CSV: {error}", where=f"{path}:{reader.line_num + 1}"
            ) from error


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file without those that are blank.

    Raises:
        UserError: it is no UTF-8 text.
    """
    try:
        text = read_untrusted(path, most=MAX_LIST_BYTES, where=str(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"this is not UTF-8 text (byte {error.start})", where=str(path)) from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def number(value: object) -> float:
    """Returns a number or the number in a text; NaN if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float("nan")
    try:
        return float(value)
    except (ValueError, OverflowError):
        return float("nan")


def parse_int(value: object) -> int:
    """Returns a number, or that in a text, as an integer; 0 if it is none or beyond any image."""
    found = number(value)
    return int(found) if abs(found) < LONGEST_SIDE else 0
