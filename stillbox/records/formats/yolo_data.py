"""`data.yaml` of YOLO and the lists of Darknet: classes and splits."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from stillbox.errors import UserError
from stillbox.records.data_folder import DataFolder, Split, folder_split
from stillbox.records.guarded import read_lines, read_yaml
from stillbox.records.problems import ConversionLog

_NAME_FILES = ("classes.txt", "obj.names", "labels.txt")
_SPLIT_KEYS: dict[str, Split] = {"train": "train", "val": "val", "valid": "val", "test": "test"}


def is_data_yaml(file: Path) -> bool:
    """Tells whether a YAML file describes a data set of YOLO."""
    content = _yaml(file)
    return "names" in content and bool(content.keys() & {*_SPLIT_KEYS, "nc", "path"})


def _yaml(file: Path) -> Mapping[str, Any]:
    try:
        content = read_yaml(file)
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}


def pose_files(folder: DataFolder) -> list[Path]:
    """Returns the `data.yaml` files of data sets of poses."""
    yamls = folder.with_suffix(".yaml", ".yml")
    return [f for f in yamls if folder.memoized(is_data_yaml, f) and "kpt_shape" in _yaml(f)]


def class_names(folder: DataFolder, yamls: Sequence[Path]) -> list[str]:
    """Returns the classes in the order of their numbers, none if no file names them.

    Raises:
        UserError: several lists differ, or `names` of `data.yaml` has gaps or is no list.
    """
    lists = {file: _yaml_names(file) for file in yamls}
    if not lists:
        named = [f for f in folder.files if f.name in _NAME_FILES or f.suffix == ".names"]
        lists = {file: read_lines(file) for file in named}
    different = {tuple(names) for names in lists.values() if names}
    if len(different) > 1:
        shown = ", ".join(folder.relative(file) for file in lists)
        raise UserError(
            f"the lists of classes differ: {shown}",
            where=str(folder.shown),
            fix="keep the one that belongs to the label files",
        )
    return list(different.pop()) if different else []


def _yaml_names(file: Path) -> list[str]:
    names = _yaml(file)["names"]
    if isinstance(names, dict):
        numbers = [int(key) if str(key).isdecimal() else -1 for key in names]
        if sorted(numbers) != list(range(len(names))):
            raise UserError(
                "the numbers of the classes have gaps", where=f"{file}: names", fix="use 0, 1, ..."
            )
        by_number = dict(zip(numbers, names.values(), strict=True))
        return [str(by_number[n]) for n in range(len(names))]
    if not isinstance(names, list):
        raise UserError("the classes are no list", where=f"{file}: names", fix="names: [cat, dog]")
    return [str(name) for name in names]


class Splits:
    """The split of each image by `data.yaml`, or by Darknet's `train.txt`, or by its folder.

    Args:
        folder: the data set.
        files: its `data.yaml` files and label files.
        log: collects the problems.
    """

    def __init__(self, folder: DataFolder, files: Sequence[Path], log: ConversionLog) -> None:
        self._folder = folder
        self._folders: dict[Path, Split] = {}
        self._images: dict[Path, Split] = {}
        yamls = [file for file in files if file.suffix.lower() != ".txt"]
        for file in yamls:
            content = _yaml(file)
            for key in reversed(_SPLIT_KEYS):
                for entry in _entries(content.get(key)):
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

    def _add(self, entry: str, base: object, file: Path, split: Split, log: ConversionLog) -> None:
        for place in _places(entry, base, file.parent):
            if not self._folder.images_root.holds(place):
                continue
            if place.is_dir():
                # Files have the names behind the links.
                self._folders[Path(os.path.realpath(place))] = split
                return
            if place.suffix == ".txt" and place.is_file():
                return self._add_list(place, split, log)
        log.add(
            "folder of a split is not here",
            f"{self._folder.relative(file)}: {split}",
            entry,
            action="passed over",
        )
        return None

    def _add_list(self, file: Path, split: Split, log: ConversionLog) -> None:
        for name in read_lines(file):
            path = self._folder.image(name, file, file.parent, log)
            if path is not None:
                self._images[path] = split


def _entries(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [entry for entry in values if isinstance(entry, str) and entry]


def _places(entry: str, base: object, near: Path) -> list[Path]:
    """Returns where an entry may lie; Roboflow writes `../train/images` for `train/images`."""
    plain = PurePosixPath(*[part for part in PurePosixPath(entry).parts if part != ".."])
    under = [near / base] if isinstance(base, str) else []
    places = (*(folder / entry for folder in under), near / entry, near / plain)
    return [Path(os.path.normpath(place)) for place in places]
