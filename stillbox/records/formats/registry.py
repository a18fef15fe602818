"""Annotation formats: recognising the format of a folder, and helpers that formats share."""

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError, nearest
from stillbox.printing import count_text
from stillbox.records import formats
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.box_numbers import BoxNumbers
from stillbox.records.data_folder import DataFolder, Split
from stillbox.records.foreign_files import (
    MAX_ANNOTATION_BYTES,
    Json,
    json_object,
    read_head,
    xml_root,
)
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.review import Stated
from stillbox.records.shapes import Box
from stillbox.records.unread import unread_files
from stillbox.references import Parameter
from stillbox.untrusted import read_untrusted


class Labelled(NamedTuple):
    """An image of a foreign format."""

    image: AnnotatedImage
    """The image; its class ids are not assigned yet."""
    names: Sequence[str]
    """`[N]`, class of each box."""
    split: Split | None = None
    """The split that the format states."""


@dataclass(kw_only=True)
class FolderContents:
    """The content of a folder, as read by a format."""

    images: list[Labelled] = field(default_factory=list)
    classes: Sequence[str] = ()
    """All classes in their order; by default the classes of the boxes, sorted."""
    label_map: LabelMap | None = None
    """Classes with ids, if the format has ids."""
    numbers: BoxNumbers
    """Unit and layout of the boxes as the format defines them."""

    def with_ids(self, label_map: LabelMap | None = None) -> tuple[list[Stated], LabelMap]:
        """Returns the images with class ids, and the label map, by default the format's own.

        Raises:
            UserError: there is no class.
        """
        label_map = label_map or self.label_map
        if label_map is None:
            names = self.classes or sorted({name for entry in self.images for name in entry.names})
            names = [name for name in dict.fromkeys(names) if name]
            if not names:
                problem = "no annotation names an object, so there is no class"
                raise UserError(problem, fix=f"give the classes with {Parameter('label_map')}")
            label_map = LabelMap.from_names(names)
        return [
            Stated(_with_ids(entry, label_map), entry.split) for entry in self.images
        ], label_map


def _with_ids(entry: Labelled, label_map: LabelMap) -> AnnotatedImage:
    ids = [label_map.find(name) for name in entry.names]
    named = entry.image.unknown
    unknown = {row: named.get(row) or repr(entry.names[row]) for row, i in enumerate(ids) if not i}
    return replace(entry.image, class_ids=np.array(ids, np.int32), unknown=unknown)


Finder = Callable[[DataFolder], list[Path]]
"""Returns the annotation files of a format in a folder, by their content."""
FormatReader = Callable[[DataFolder, list[Path], ConversionLog], FolderContents]
"""Reads the files that the finder has found."""


@dataclass(frozen=True)
class FolderFormat:
    """An annotation format."""

    name: str
    """For `--format`."""
    title: str
    """For messages, as `CVAT for images`."""
    find: Finder
    read: FormatReader | None
    """None for a format that is only named."""
    fix: str = ""
    """The remedy for a format that is only named."""
    beside: tuple[str, ...] = ()
    """Formats beside which the files of this one are passed over; `*` for all."""


_FORMATS: dict[str, FolderFormat] = {}
_SAME_PIXELS = 1.5


def register(name: str, title: str, find: Finder) -> Callable[[FormatReader], FormatReader]:
    """Returns the decorator that registers a reader under a name."""

    def add(reader: FormatReader) -> FormatReader:
        _FORMATS[name] = FolderFormat(name, title, find, reader)
        return reader

    return add


def register_foreign(
    name: str, title: str, find: Finder, fix: str, beside: tuple[str, ...] = ()
) -> None:
    """Registers a format that is recognised but cannot be converted."""
    _FORMATS[name] = FolderFormat(name, title, find, None, fix, beside)


def all_formats() -> Mapping[str, FolderFormat]:
    """Returns all formats by name, with the users' formats that are imported so far."""
    _import_formats()
    return dict(sorted(_FORMATS.items()))


@cache
def _import_formats() -> None:
    for module in pkgutil.iter_modules(formats.__path__):
        importlib.import_module(f"{formats.__name__}.{module.name}")


def readable_formats() -> list[str]:
    """Returns the names of the formats that can be converted."""
    return [name for name, form in all_formats().items() if form.read is not None]


class Recognised(NamedTuple):
    """The format of a folder."""

    format: FolderFormat
    files: list[Path]
    """The annotation files of the format."""
    others: dict[str, int]
    """Number of the files of formats that are passed over, by title."""
    all_files: list[Path]
    """The files of all formats."""


def recognise(folder: DataFolder, chosen: str = "") -> Recognised:
    """Returns the format of a folder: the `chosen` one, or the only one that its files have.

    Of several that describe the same boxes it is the one with the most images.

    Raises:
        UserError: the files have no known format, several, or one that cannot be converted.
    """
    if chosen and chosen not in readable_formats():
        fix = nearest(chosen, readable_formats())
        raise UserError(f"there is no format {chosen!r}", where=Parameter("format"), fix=fix)
    matches = {
        form.name: (form, files) for form in all_formats().values() if (files := form.find(folder))
    }
    if chosen and chosen not in matches:
        problem = f"no file is {all_formats()[chosen].title}"
        fix = (
            f"leave {Parameter('format')} out; there is "
            f"{_described(folder, matches) or 'no known one'}"
        )
        raise UserError(problem, where=str(folder.shown), fix=fix)
    readable = {name for name, (form, _) in matches.items() if form.read is not None}
    wanted = {chosen} if chosen else readable
    rivals = set() if chosen else {n for n, (form, _) in matches.items() if _rivals(form, wanted)}
    if len(rivals) > 1:
        readings, faults = _read_all(folder, matches, rivals & readable)
        best = _best_of_same(readings) if len(readings) == len(rivals) else ""
        if not best:
            raise _several(folder, matches, rivals, readings, faults)
        wanted, rivals = {best}, rivals - {best}
    if not wanted:
        raise _no_format(folder, matches)
    every = [file for _, files in matches.values() for file in files]
    form, files = matches.pop(wanted.pop())
    same = dict.fromkeys(rivals, ", which has the same boxes")
    others = {o.title + same.get(name, ""): len(paths) for name, (o, paths) in matches.items()}
    return Recognised(form, files, others, every)


FoundFormats = Mapping[str, tuple[FolderFormat, list[Path]]]
"""Formats by name, with their files."""


def _read_all(
    folder: DataFolder, matches: FoundFormats, names: Iterable[str]
) -> tuple[dict[str, FolderContents], list[str]]:
    """Returns the contents by format, and a sentence about each format that cannot be read."""
    readings: dict[str, FolderContents] = {}
    faults = []
    for name in sorted(names):
        form, files = matches[name]
        assert form.read is not None  # the caller gives readable formats
        try:
            contents = form.read(folder, files, ConversionLog("drop", "drop"))
            contents.with_ids()
            readings[name] = contents
        except UserError as error:
            where = f"{error.where}: " if error.where else ""
            faults.append(f"as {form.title} it cannot be read: {where}{error.what}")
    return readings, faults


def _several(
    folder: DataFolder,
    matches: FoundFormats,
    names: set[str],
    readings: Iterable[str],
    faults: Sequence[str],
) -> UserError:
    """Returns the error about formats to choose from, with those that can be read as its remedy."""
    problem = f"the folder has several formats: {_described(folder, matches, names)}"
    fix = (
        " or ".join(f"{Parameter('format', f'{name}')}" for name in readings)
        or "give a folder with one of them"
    )
    return UserError("\n  ".join([problem, *faults]), where=str(folder.shown), fix=fix)


def _best_of_same(readings: Mapping[str, FolderContents]) -> str:
    """Returns the format with the most images and stated splits, empty if the boxes differ."""
    sizes: dict[Path, tuple[int, int]] = {}
    for image in (labelled.image for contents in readings.values() for labelled in contents.images):
        if min(image.height, image.width) > 0:
            sizes.setdefault(image.path, (image.height, image.width))
    first, *others = (_boxes(reading, sizes) for reading in readings.values())
    if not first or not all(_same(first, other) for other in others):
        return ""
    splits = {
        name: sum(i.split is not None for i in contents.images)
        for name, contents in readings.items()
    }
    return max(readings, key=lambda name: (len(readings[name].images), splits[name]))


_Boxes = Mapping[tuple[Path, str], NDArray[np.float64]]


def _boxes(reading: FolderContents, sizes: Mapping[Path, tuple[int, int]]) -> _Boxes:
    """Returns the boxes in pixels, `[N, 4]`, of each class of each image; NaN without a size."""
    rows: dict[tuple[Path, str], list[NDArray[np.float64]]] = defaultdict(list)
    for image, names, _ in reading.images:
        sides = 2 * sizes.get(image.path, (np.nan, np.nan)) if image.relative else 1.0
        for name, box in zip(names, image.pixel_boxes * sides, strict=True):
            rows[image.path, name].append(box)
    return {key: np.array(boxes) for key, boxes in rows.items()}


def _same(first: _Boxes, second: _Boxes) -> bool:
    """Tells whether each box has a counterpart; formats count pixels from 0 or 1, and round."""
    if first.keys() != second.keys():
        return False
    return all(_close(boxes, second[key]) for key, boxes in first.items())


_COMPARED_AT_ONCE = 256


def _close(first: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Tells whether each of the boxes `[N, 4]` is close to one of the other, and vice versa."""
    if len(first) != len(other):
        return False
    first, other = (boxes[np.argsort(boxes.sum(axis=1))] for boxes in (first, other))
    sums = other.sum(axis=1)
    reached = np.zeros(len(other), np.bool_)
    for start in range(0, len(first), _COMPARED_AT_ONCE):
        rows = first[start : start + _COMPARED_AT_ONCE]
        # The sums of close boxes are close too.
        ends = rows[[0, -1]].sum(axis=1) + 4 * _SAME_PIXELS * np.array([-1, 1])
        low, high = np.searchsorted(sums, ends)
        close = np.abs(rows[:, None] - other[None, low:high]).max(axis=-1) <= _SAME_PIXELS
        if not close.any(axis=1).all():
            return False
        reached[low:high] |= close.any(axis=0)
    return bool(reached.all())


def _rivals(form: FolderFormat, readable: set[str]) -> bool:
    """Tells whether a format remains a candidate beside the `readable` ones."""
    beside = readable if "*" in form.beside else readable & set(form.beside)
    return form.read is not None or not beside


def _described(folder: DataFolder, matches: FoundFormats, names: set[str] | None = None) -> str:
    parts = []
    for name, (form, files) in matches.items():
        if names is None or name in names:
            more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
            parts.append(f"{form.title} ({folder.relative(files[0])}{more})")
    return ", ".join(parts)


def _no_format(folder: DataFolder, matches: FoundFormats) -> UserError:
    for form, files in matches.values():
        where = str(folder.shown / folder.relative(files[0]))
        return UserError(f"this is {form.title}, which is not converted", where=where, fix=form.fix)
    titles = ", ".join(all_formats()[name].title for name in readable_formats())
    images = count_text(len(folder.images), "image")
    unread = unread_files(folder, folder.used)
    shown = "".join(
        f"\n  {folder.relative(file)}{line}: {why}" for file, line, why in unread[:_SHOWN_UNREAD]
    )
    return folder.behind_links() or UserError(
        f"the folder has {images} and no annotations that are known{shown}",
        where=str(folder.shown),
        fix=f"give a folder with one of: {titles}",
    )


_SHOWN_UNREAD = 5


def labelled(
    path: Path,
    where: str,
    names: Sequence[str],
    boxes: Sequence[Box],
    *,
    size: tuple[int, int] = (0, 0),
    split: Split | None = None,
    relative: bool = False,
    is_crowd: Sequence[bool] = (),
    truncated: Sequence[bool] = (),
    stored: Callable[[], bytes] | None = None,
) -> Labelled:
    """Returns the annotation of the image `path`: names and boxes, and fields of `AnnotatedImage`.

    `size` is the height and width that the annotation claims, `split` the split that the format
    states. Image id and file name are the name of the file.
    """
    image = AnnotatedImage(
        path=path,
        where=where,
        image_id=path.name,
        filename=path.name,
        height=size[0],
        width=size[1],
        pixel_boxes=np.array(boxes, np.float64).reshape(-1, 4),
        class_ids=np.zeros(len(boxes), np.int32),
        relative=relative,
        is_crowd=np.array(is_crowd, np.bool_),
        truncated=np.array(truncated, np.bool_),
        stored=stored,
    )
    return Labelled(image, list(names), split)


NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JsonOutline:
    """The keys of a JSON file."""

    keys: frozenset[str] = NOTHING
    """The keys of the object; if `is_list`, the keys of the first object of the list."""
    is_list: bool = False
    inner: dict[str, frozenset[str]] = field(default_factory=dict)
    """Keys of the first object in each list of the object."""
    first: frozenset[str] = NOTHING
    """Keys of the first object in the object."""


def json_files(accepts: Callable[[JsonOutline], bool]) -> Finder:
    """Returns a finder of the JSON files with an outline that a function accepts."""
    return lambda folder: [
        file
        for file in folder.with_suffix(".json")
        if accepts(folder.memoized(_outline, file, folder.json))
    ]


def xml_files(accepts: Callable[[str, frozenset[str]], bool]) -> Finder:
    """Returns a finder of the XML files with an `xml_outline` that a function accepts."""
    return lambda folder: [
        file for file in folder.with_suffix(".xml") if accepts(*folder.memoized(xml_outline, file))
    ]


def _outline(file: Path, read: Callable[[Path], Json]) -> JsonOutline:
    try:
        content = read(file)
    except UserError:
        return JsonOutline()
    if isinstance(content, list):
        return JsonOutline(_keys(content), is_list=True)
    fields = json_object(content)
    lists = {key: _keys(value) for key, value in fields.items() if isinstance(value, list)}
    first = frozenset(json_object(next(iter(fields.values()), None)))
    return JsonOutline(frozenset(fields), inner=lists, first=first)


def _keys(values: list[Json]) -> frozenset[str]:
    return frozenset(json_object(values[0])) if values else NOTHING


def xml_outline(path: Path) -> tuple[str, frozenset[str]]:
    """Returns the root element of an XML file, and which elements occur that tell the format."""
    root = xml_root(read_head(path))
    if root not in ("annotation", "annotations"):
        return root, NOTHING
    content = read_untrusted(path, most=MAX_ANNOTATION_BYTES)
    marks = ("bndbox", "polygon", "object", "image", "track")
    present = (m for m in marks if any(f"<{m}{end}".encode() in content for end in "> "))
    return root, frozenset(present)
