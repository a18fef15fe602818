"""Foreign annotations: annotated images, the image files that they name, guarded readers.

The readers report an annotation file (XML, JSON, YAML, CSV) that is malformed, nested too deep or
built to grow in memory in one sentence with file and line. Image files must lie inside the folder
of the images: `../../x`, an absolute name or a symbolic link could make any file of this machine
part of the records.
"""

import csv
import io
import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.printing import SURROGATE, file_name_text, printable_line
from stillbox.records.example import Example, no_flags, no_numbers
from stillbox.records.image_files import MAX_IMAGE_BYTES, PreparedImage
from stillbox.records.problems import ProblemLog
from stillbox.textformat.yaml_tree import Plain, compose, read_text_file
from stillbox.untrusted import open_untrusted, read_untrusted

Json: TypeAlias = Plain
"""Content of a JSON or YAML file."""

LONGEST_SIDE = 2**31
"""An annotation that claims as many pixels or more has no usable size."""


@dataclass(frozen=True, kw_only=True)
class AnnotatedImage:
    """The annotation of one image. N is the number of its boxes."""

    path: Path
    """The image file; it need not exist."""
    where: str
    """Annotation file and image, for messages; unprintable characters are escaped."""
    image_id: str
    """Becomes `image/source_id`; here and in `filename`, bytes that are not text become `%E9`."""
    filename: str
    """Becomes `image/filename`."""
    height: int
    """Height in pixels that the annotation claims, or 0."""
    width: int
    """Width in pixels that the annotation claims, or 0."""
    pixel_boxes: NDArray[np.float64]
    """`[N, 4]`, ymin, xmin, ymax, xmax in pixels of the claimed size."""
    relative: bool = False
    """Boxes are fractions of the image's sides instead, upright if no size is claimed."""
    class_ids: NDArray[np.int32]
    """`[N]`, label map ids, 0 where the class is unknown."""
    unknown: dict[int, str] = field(default_factory=dict)
    """The annotation's name of an unknown class, by box."""
    is_crowd: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`; this and the following columns are empty if the format does not have them."""
    difficult: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`."""
    truncated: NDArray[np.bool_] = field(default_factory=no_flags)
    """`[N]`."""
    area: NDArray[np.float32] = field(default_factory=no_numbers)
    """`[N]`, segment area in square pixels of the claimed size, NaN if unknown."""
    stored: Callable[[], bytes] | None = None
    """Returns the image file, if the format keeps images in files of its own."""

    def __post_init__(self) -> None:
        for name in ("image_id", "filename"):
            object.__setattr__(self, name, file_name_text(getattr(self, name)))
        object.__setattr__(self, "where", printable_line(self.where))

    def content(self) -> bytes:
        """Returns the bytes of the image file.

        Raises:
            OSError: it cannot be opened.
        """
        if self.stored is not None:
            return self.stored()
        if not self.path.exists():
            raise FileNotFoundError(self.path)
        try:
            return read_untrusted(self.path, most=MAX_IMAGE_BYTES)
        except UserError as error:
            raise OSError(error.what) from error


def only_boxes(item: AnnotatedImage, keep: NDArray[np.bool_]) -> AnnotatedImage:
    """Returns the annotation with the boxes that a mask `[N]` keeps."""
    if keep.all() or not keep.size:
        return item
    rows = np.flatnonzero(keep).tolist()
    columns = ("pixel_boxes", "class_ids", "is_crowd", "difficult", "truncated", "area")
    # A column that the format does not have is empty.
    kept = {name: one[keep] for name in columns if len(one := getattr(item, name))}
    unknown = {rows.index(row): name for row, name in item.unknown.items() if row in rows}
    return replace(item, unknown=unknown, **kept)


def to_example(item: AnnotatedImage, image: PreparedImage, problems: ProblemLog) -> Example:
    """Returns the example of an annotated image, without checking its boxes.

    If annotation and file disagree about the size, boxes are divided by the claimed size if they
    fit into it (the file was resized later), otherwise by the real size if they fit into that.
    """
    real = (image.height, image.width)
    claimed = (item.height, item.width)
    frame = (1, 1) if item.relative else real
    if claimed != real and not item.relative:
        frame, outcome = _frame(item.pixel_boxes, claimed, real)
        detail = f"{item.width} x {item.height}, image {image.width} x {image.height}"
        reason = "annotation without a size" if min(claimed) <= 0 else "size is not the image's"
        problems.add(reason, item.where, detail, action=outcome)
    # Rounded once, from float64: the nearest value to the true quotient. A number beyond float32
    # becomes infinite, which makes the box unusable.
    scale = 1 if item.relative else (real[0] * real[1]) / (frame[0] * frame[1])
    with np.errstate(over="ignore"):
        boxes = (item.pixel_boxes / np.array([*frame, *frame], np.float64)).astype(np.float32)
        area = (item.area * scale).astype(np.float32)
    return Example(
        image_id=item.image_id,
        encoded=image.encoded,
        filename=item.filename,
        height=image.height,
        width=image.width,
        boxes=boxes,
        class_ids=item.class_ids,
        is_crowd=item.is_crowd,
        difficult=item.difficult,
        truncated=item.truncated,
        area=area,
    )


def _frame(
    boxes: NDArray[np.float64], claimed: tuple[int, int], real: tuple[int, int]
) -> tuple[tuple[int, int], str]:
    """Returns the size by which pixel boxes are divided, and its description."""
    if min(claimed) <= 0:
        return real, "real size used"
    reach = np.nan_to_num(boxes[:, 2:]).max(axis=0, initial=0)
    if np.all(reach <= np.array(claimed) + 1) and claimed[::-1] != real:
        return claimed, "boxes divided by the annotation's size"
    if np.all(reach <= np.array(real) + 1):
        return real, "boxes divided by the real size"
    return claimed, "boxes divided by the annotation's size"


_MOST_SEARCHED = 2**28
"""Bytes of a file in which the line for a message is looked up."""


class ImageRoot:
    """The folder that the image names of an annotation may not leave."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._real = os.path.realpath(folder)
        if self.folder != Path(os.path.normpath(folder)):  # as a/../b, where `a` may be a link
            self.folder = Path(self._real)
        self._inside: dict[str, bool] = {}

    def path(self, name: str, annotation: Path, near: Path | None = None) -> Path:
        """Returns the path of an image name, which need not exist.

        The name is relative to `near`, a folder inside this one, by default this one. `annotation`
        is the file with the name, for messages.

        Raises:
            UserError: the name is absolute or leads out of the folder.
        """
        written = name.replace("\\", "/")
        absolute = PurePosixPath(written).is_absolute() or PureWindowsPath(name).drive
        path = Path(os.path.normpath((near or self.folder) / written))
        if absolute or "\0" in name or not self.holds(path):
            linked = not absolute and path.is_relative_to(self.folder)
            through = ", through a symbolic link" if linked else ""
            fix = f"let the name be relative to {self.folder} and stay in it"
            if linked:
                fix = f"copy the images to {path.parent}, or give a folder that holds both"
            what = f"the image name {name!r} leads out of the folder of the images{through}"
            raise UserError(what, where=line_of(annotation, name), fix=fix)
        return path

    def holds(self, path: Path) -> bool:
        """Tells whether a path stays inside after all symbolic links, without opening it."""
        if not path.is_relative_to(self.folder):
            return False
        parent = str(path.parent)
        if parent not in self._inside:
            self._inside[parent] = self._below(os.path.realpath(parent))
        # os.path: no error for a name that is too long for a file.
        return self._inside[parent] and (
            not os.path.islink(path) or self._below(os.path.realpath(path))  # noqa: PTH114
        )

    def _below(self, real: str) -> bool:
        return real == self._real or real.startswith(self._real.rstrip("/") + "/")


def line_of(file: Path, text: str) -> str:
    """Returns `file:line` of the first line with a text, also one escaped as JSON or XML."""
    try:
        content = read_untrusted(file, most=_MOST_SEARCHED)
    except UserError:
        return str(file)
    spellings = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    for spelling in (*spellings, escape(text, {'"': "&quot;"})):
        at = content.find(spelling.encode(errors="replace")) if spelling else -1
        if at >= 0:
            return f"{file}:{content.count(10, 0, at) + 1}"
    return str(file)


MAX_ANNOTATION_BYTES = 2**31
"""Greatest size of an annotation file: that of COCO's 118,287 images takes a fifth of it."""
# Trees of XML take ten times the memory of their text.
_MOST_XML_BYTES = 2**29
# Rows of CSV are read one by one: the 14.6 million of Open Images take a quarter of it.
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
        UserError: it cannot be read, it is not XML, or its entities multiply it, which expat
            recognises since 2.4.1.
    """
    content = read_untrusted(path, most=_MOST_XML_BYTES, where=str(path))
    try:
        return ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        what = f"this is not XML: {error.msg}"
        raise UserError(what, where=f"{path}:{error.position[0]}") from error
    except (ValueError, LookupError) as error:  # an encoding that does not exist
        raise UserError(f"this is not XML: {error}", where=str(path)) from error


def xml_root(head: bytes) -> str:
    """Returns the name of the root element from the first bytes of a file, or an empty text."""
    try:
        events = ElementTree.iterparse(io.BytesIO(head), events=("start",))
        _, root = next(events)
    except (ElementTree.ParseError, ValueError, LookupError, StopIteration):
        return ""
    return root.tag.rpartition("}")[2]


def read_json(path: Path) -> Json:
    """Returns the content of a JSON file.

    Raises:
        UserError: it cannot be read, it is not JSON, or it is nested too deep.
    """
    if read_head(path)[:2] == b"\0\0":
        # It would be read as UTF-32, which takes long.
        raise UserError("this is not JSON: it begins with zeros", where=str(path))
    return parse_json(read_untrusted(path, most=MAX_ANNOTATION_BYTES, where=str(path)), str(path))


def parse_json(content: bytes | str, where: str) -> Json:
    """Returns the content of JSON text at `where`, which is a file or a line of it."""
    try:
        if isinstance(content, bytes):
            content = content.decode(json.detect_encoding(content), "surrogatepass")
        found: Json = json.loads(content)
        escaped = "\\ud" in content or "\\uD" in content
        if escaped or (not content.isascii() and SURROGATE.search(content)):
            return without_surrogates(found)
        return found
    except json.JSONDecodeError as error:
        line = f"{where}:{error.lineno}" if error.lineno > 1 or ":" not in where else where
        raise UserError(f"this is not JSON: {error.msg}", where=line) from error
    except RecursionError as error:
        raise UserError("the JSON is nested too deep", where=where) from error
    except ValueError as error:  # no UTF-8, or a number of thousands of digits
        raise UserError(f"this is not JSON: {error}", where=where) from error


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


def read_yaml(path: Path) -> Json:
    """Returns the content of a YAML file; the names of its mappings are text.

    Raises:
        UserError: `compose` refuses it.
    """
    text = read_text_file(path, fix="give the YAML file of a data set")
    return without_surrogates(compose(text, str(path)).plain())


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line number and values by column of each row of a CSV file with a header.

    Raises:
        UserError: it is not CSV, or a row is longer or shorter than the header.
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
            what = f"this is not CSV: {error}"
            raise UserError(what, where=f"{path}:{reader.line_num + 1}") from error


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Returns number and text of the lines of a text file that are not blank.

    Raises:
        UserError: it is not UTF-8 text.
    """
    try:
        text = read_untrusted(path, most=MAX_LIST_BYTES, where=str(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"this is not UTF-8 text (byte {error.start})", where=str(path)) from error
    # Not splitlines, which also splits at separators that JSON text may contain.
    lines = enumerate(io.StringIO(text, newline=None), start=1)
    return [(place, line.strip()) for place, line in lines if line.strip()]


def read_lines(path: Path) -> list[str]:
    """Returns the lines of `numbered_lines` without their numbers."""
    return [line for _, line in numbered_lines(path)]


def number(value: object) -> float:
    """Returns a number, or the number that a text spells; NaN for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float("nan")
    try:
        return float(value)
    except (ValueError, OverflowError):
        return float("nan")


def parse_int(value: object) -> int:
    """Returns what `number` finds as an integer; 0 for NaN and for sizes beyond any image."""
    found = number(value)
    return int(found) if abs(found) < LONGEST_SIDE else 0
