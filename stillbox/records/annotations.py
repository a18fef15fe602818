"""Annotated images, and the image files that annotations name.

Image files must lie inside the folder of the images: `../../x`, an absolute name or a symbolic link
could make any file of this machine part of the records.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.printing import file_name_text, printable_line
from stillbox.records.example import Example, no_flags, no_numbers
from stillbox.records.image_files import MAX_IMAGE_BYTES, PreparedImage
from stillbox.records.problems import ProblemLog
from stillbox.untrusted import read_untrusted


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
    kept = {name: column[keep] for name in columns if len(column := getattr(item, name))}
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
        if min(claimed) > 0:
            problems.add("size is not the image's", item.where, detail, action=outcome)
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


_MOST_FOLDERS = 128
"""Folders in the name of an image: each of them is looked up."""
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
            UserError: the name is absolute or leads out of the folder, or has too many folders.
        """
        written = name.replace("\\", "/")
        if (folders := written.count("/")) > _MOST_FOLDERS:
            problem = f"an image name has {folders:,} folders, and {_MOST_FOLDERS} are read"
            raise UserError(problem, where=str(annotation), fix="mend the name")
        absolute = is_absolute(name)
        path = Path(os.path.normpath((near or self.folder) / written))
        if absolute or "\0" in name or not self.holds(path):
            linked = not absolute and path.is_relative_to(self.folder)
            through = ", through a symbolic link" if linked else ""
            fix = f"let the name be relative to {self.folder} and stay in it"
            if linked:
                fix = f"copy the images to {path.parent}, or give a folder that holds both"
            problem = f"the image name {name!r} leads out of the folder of the images{through}"
            raise UserError(problem, where=line_of(annotation, name), fix=fix)
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


def is_absolute(name: str) -> bool:
    """Tells whether the name of a file begins at a root or a drive, here or on Windows."""
    return name.startswith(("/", "\\")) or bool(PureWindowsPath(name).drive)


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
