"""YOLO: a text file for each image, one line `class x y width height` or `class x1 y1 x2 y2 ...`.

Coordinates are fractions of the sides, from the centre. An outline of three points or more
becomes the box around it. The classes and splits are in `data.yaml`, `classes.txt`, or Darknet's
`*.names` and lists. Source: docs.ultralytics.com, "Object Detection Datasets Overview".
"""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.annotations import Json, json_object, number, read_head, read_lines, read_yaml
from stillbox.records.data_folder import DataFolder, Split, folder_split
from stillbox.records.formats.registry import (
    NO_BOX,
    Box,
    FolderContents,
    Labelled,
    bounds,
    labelled,
    register,
    register_foreign,
)
from stillbox.records.problems import ConversionLog
from stillbox.untrusted import read_untrusted

_NAME_FILES = ("classes.txt", "obj.names", "labels.txt")
_SPLIT_KEYS: dict[str, Split] = {"train": "train", "val": "val", "valid": "val", "test": "test"}


def is_data_yaml(file: Path) -> bool:
    """Tells whether a YAML file describes a data set of YOLO."""
    content = _yaml(file)
    return "names" in content and bool(content.keys() & {*_SPLIT_KEYS, "nc", "path"})


def _yaml(file: Path) -> Mapping[str, Json]:
    try:
        return json_object(read_yaml(file))
    except UserError:
        return {}


def pose_files(folder: DataFolder) -> list[Path]:
    """Returns the `data.yaml` files of data sets of poses."""
    return [f for f in folder.matching(is_data_yaml, ".yaml", ".yml") if "kpt_shape" in _yaml(f)]


def class_names(folder: DataFolder, yamls: Sequence[Path]) -> list[str]:
    """Returns the classes in the order of their numbers, none if no file names them.

    Raises:
        UserError: several lists differ, or `names` of `data.yaml` has gaps or is no list.
    """
    lists = {file: _yaml_names(file) for file in yamls}
    if not lists:
        named = (f for f in folder.files if f.name in _NAME_FILES or f.suffix == ".names")
        lists = {file: read_lines(file) for file in named}
    different = {tuple(names) for names in lists.values() if names}
    if len(different) > 1:
        shown = ", ".join(folder.relative(file) for file in lists)
        fix = "keep the one that belongs to the label files"
        raise UserError(f"the lists of classes differ: {shown}", where=str(folder.shown), fix=fix)
    return list(different.pop()) if different else []


def _yaml_names(file: Path) -> list[str]:
    names = _yaml(file)["names"]
    if isinstance(names, dict):
        numbers = [int(key) if str(key).isdecimal() else -1 for key in names]
        if sorted(numbers) != list(range(len(names))):
            what = "the numbers of the classes have gaps"
            raise UserError(what, where=f"{file}: names", fix="use 0, 1, ...")
        by_number = dict(zip(numbers, names.values(), strict=True))
        return [str(by_number[n]) for n in range(len(names))]
    if not isinstance(names, list):
        raise UserError("the classes are no list", where=f"{file}: names", fix="names: [cat, dog]")
    return [str(name) for name in names]


class Splits:
    """The split of each image by `data.yaml`, or by Darknet's `train.txt`, or by its folder."""

    def __init__(self, folder: DataFolder, files: Sequence[Path], log: ConversionLog) -> None:
        self._folder = folder
        self._folders: dict[Path, Split] = {}
        self._images: dict[Path, Split] = {}
        yamls = [file for file in files if file.suffix.lower() != ".txt"]
        for file in yamls:
            content = _yaml(file)
            for key in reversed(_SPLIT_KEYS):
                entries = content.get(key)
                for entry in entries if isinstance(entries, list) else [entries]:
                    if isinstance(entry, str) and entry:
                        self._add(entry, content.get("path"), file, _SPLIT_KEYS[key], log)
        if not yamls:
            for file in folder.with_suffix(".txt"):
                if file.stem in _SPLIT_KEYS and file not in files:
                    self._add_list(file, _SPLIT_KEYS[file.stem], log)

    def stated(self, path: Path) -> Split | None:
        """Returns the split that a list or `data.yaml` states for an image."""
        own = self._images.get(path)
        return own or next((self._folders[p] for p in path.parents if p in self._folders), None)

    def of(self, path: Path) -> Split | None:
        """Returns the split of an image, None if nothing states it."""
        return self.stated(path) or folder_split(path.relative_to(self._folder.root))

    def _add(self, entry: str, base: Json, file: Path, split: Split, log: ConversionLog) -> None:
        for place in _places(entry, base, file.parent):
            if not self._folder.images_root.holds(place):
                continue
            if place.is_dir():
                # Files have the names behind the links.
                self._folders[Path(os.path.realpath(place))] = split
                return
            if place.suffix == ".txt" and place.is_file():
                self._add_list(place, split, log)
                return
        where = f"{self._folder.relative(file)}: {split}"
        log.add("folder of a split is not here", where, entry, action="passed over")

    def _add_list(self, file: Path, split: Split, log: ConversionLog) -> None:
        for name in read_lines(file):
            path = self._folder.image(name, file, file.parent, log)
            if path is not None:
                self._images[path] = split


def _places(entry: str, base: Json, near: Path) -> list[Path]:
    """Returns where an entry may lie; Roboflow writes `../train/images` for `train/images`."""
    plain = PurePosixPath(*[part for part in PurePosixPath(entry).parts if part != ".."])
    under = [near / base / entry] if isinstance(base, str) else []
    return [Path(os.path.normpath(place)) for place in (*under, near / entry, near / plain)]


# The labels of one image; these are some hundred thousand boxes.
_MOST_LABEL_BYTES = 2**24

_LINE = re.compile(rb"\s*\d+(\s+-?\d+(\.\d*)?([eE][+-]?\d+)?|\s+-?\.\d+){4,}\s*$")
_KITTI = re.compile(rb"\s*[A-Za-z_]+(\s+-?\d+(\.\d+)?){14,15}\s*$")
_MOST_UNNAMED = 1000
"""Classes without a file of names."""


def _find(folder: DataFolder) -> list[Path]:
    """Returns `data.yaml` files and label files, none if the YAML is of poses."""
    if pose_files(folder):
        return []
    return folder.matching(is_data_yaml, ".yaml", ".yml") + _text_files(folder, _LINE)


def _text_files(folder: DataFolder, pattern: re.Pattern[bytes]) -> list[Path]:
    """Returns the text files whose first line that is not blank matches."""
    files = folder.with_suffix(".txt")
    return [file for file in files if folder.memoized(_pattern_of, file) is pattern]


def _pattern_of(file: Path) -> re.Pattern[bytes] | None:
    """Returns the pattern of labels that the first line of a file matches, if any.

    No line matches both: one begins with a number, the other with a word.
    """
    lines = read_head(file).split(b"\n", 50)
    first = next((line for line in lines if line.strip()), b"").removeprefix(b"\xef\xbb\xbf")
    return next((pattern for pattern in (_LINE, _KITTI) if pattern.match(first)), None)


@register("yolo", "YOLO", _find)
def read(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads label files; an image without one is background, one with rubbish is left out.

    Raises:
        UserError: there are several lists of classes that differ, or a list names a file outside.
    """
    known = set(files)
    yamls = [file for file in files if file.suffix.lower() != ".txt"]
    names = class_names(folder, yamls)
    splits = Splits(folder, files, log)
    images: dict[Path, Labelled | None] = {}
    read_from: dict[Path, str] = {}
    beside = {file.parent for file in known}
    labels = [file for file in folder.with_suffix(".txt") if file.parent in beside]
    for file in sorted(labels, key=lambda file: file not in known):
        path = folder.image_of_stem(file.stem, file)
        if path is None:
            if file in known:
                log.bad_record("label file without an image", folder.relative(file))
        elif path not in images:
            images[path] = _labelled(folder, path, file, names, splits.of(path), log)
            read_from[path] = folder.relative(file)
        elif file in known:
            what = "another label file of an image"
            log.bad_record(what, folder.relative(file), f"beside {read_from[path]}")
            images[path] = None
    roots = {path.parent for path, one in images.items() if one}
    for path in folder.images:
        if path not in images and (path.parent in roots or splits.stated(path)):
            where = folder.relative(path)
            log.add("image without a label file", where, action="background")
            images[path] = labelled(path, where, [], [], split=splits.of(path), relative=True)
    usable = [one for path in sorted(images) if (one := images[path])]
    return FolderContents(images=usable, classes=names or _numbered(usable, log))


def _labelled(
    folder: DataFolder,
    path: Path,
    file: Path,
    names: Sequence[str],
    split: Split | None,
    log: ConversionLog,
) -> Labelled | None:
    """Returns the boxes of a label file; None, and a bad record, if its lines have none."""
    classes: list[str] = []
    boxes: list[Box] = []
    where = folder.relative(file)
    try:
        lines = read_untrusted(file, most=_MOST_LABEL_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        log.bad_record("label file is no UTF-8 text", where)
        return None
    bad: list[tuple[int, int]] = []
    for line_number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        box = _box([number(word) for word in words[1:]])
        if any(map(math.isnan, box)) or not words[0].isdecimal():
            bad.append((line_number, len(words)))
            continue
        index = int(words[0][:12])
        classes.append(names[index] if index < len(names) else f"class_{index}")
        boxes.append(box)
    if bad and not boxes:
        reason = "label file without a line that is a box"
        log.bad_record(reason, where, count_text(len(bad), "line"))
        return None
    for line_number, count in bad:
        reason = "line is neither a box nor an outline"
        log.bad_box(reason, f"{where}:{line_number}", count_text(count, "value"))
    return labelled(path, where, classes, boxes, split=split, relative=True)


def _box(values: Sequence[float]) -> Box:
    """Returns the box of a line's numbers, `NO_BOX` if they are neither a box nor an outline."""
    if len(values) == 4:
        x, y, width, height = values
        return y - height / 2, x - width / 2, y + height / 2, x + width / 2
    if len(values) >= 6 and len(values) % 2 == 0:
        return bounds(list(zip(values[::2], values[1::2], strict=True)))
    return NO_BOX


def _numbered(images: Iterable[Labelled], log: ConversionLog) -> list[str]:
    """Returns `class_0`, `class_1`, ... up to the greatest number that occurs."""
    used = {int(name.removeprefix("class_")) for one in images for name in one.names}
    greatest = max((n for n in used if n < _MOST_UNNAMED), default=-1)
    log.add("no file names the classes", "data.yaml", action="named class_0, class_1, ...")
    return [f"class_{n}" for n in range(greatest + 1)]


register_foreign(
    "yolo_pose",
    "YOLO poses (kpt_shape)",
    pose_files,
    "boxes are needed: export the data set as detection",
)

register_foreign(
    "kitti",
    "KITTI text labels",
    lambda folder: _text_files(folder, _KITTI),
    "convert them to YOLO or COCO first",
)
