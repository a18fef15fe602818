"""The splits of YOLO's data sets: `data.yaml`, Darknet's lists, or the names of folders.

A path is of the machine on which the set was made: `C:\\Users\\me\\set\\images`,
`/content/data/images`. The end of a path is looked up in the folder.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from stillbox.errors import UserError
from stillbox.records.data_folder import DataFolder, Split, folder_split
from stillbox.records.foreign_files import Json, read_lines
from stillbox.records.problems import ConversionLog

SPLIT_KEYS: dict[str, Split] = {"train": "train", "val": "val", "valid": "val", "test": "test"}


class Splits:
    """The split of each image by `data.yaml`, or by Darknet's `train.txt`, or by its folder.

    Raises:
        UserError: images to train or to validate on are stated and not there.
    """

    def __init__(
        self,
        folder: DataFolder,
        yamls: Mapping[Path, Mapping[str, Json]],
        files: Sequence[Path],
        log: ConversionLog,
    ) -> None:
        self._folder, self._log = folder, log
        self._folders: dict[Path, Split] = {}
        self._images: dict[Path, Split] = {}
        absent = [
            (file, key, entry)
            for file, content in yamls.items()
            for key in reversed(SPLIT_KEYS)
            for entry in _stated(content.get(key))
            if not self._add(entry, content.get("path"), file, SPLIT_KEYS[key])
        ]
        for file, key, entry in absent:
            self._report_absent(file, key, entry)
        if not yamls:
            for file in folder.with_suffix(".txt"):
                if file.stem in SPLIT_KEYS and file not in files:
                    self._add_list(file, SPLIT_KEYS[file.stem])

    def stated(self, path: Path) -> Split | None:
        """Returns the split that a list or `data.yaml` states for an image."""
        split = self._images.get(path)
        return split or next((self._folders[p] for p in path.parents if p in self._folders), None)

    def of(self, path: Path) -> Split | None:
        """Returns the split of an image, None if nothing states it."""
        return self.stated(path) or folder_split(path.relative_to(self._folder.root))

    def _report_absent(self, file: Path, key: str, entry: str) -> None:
        """Stops without images to score on: some chosen at random may have been trained on."""
        splits = {*self._folders.values(), *self._images.values()}
        where = f"{self._folder.relative(file)}: {key}"
        if SPLIT_KEYS[key] != "val" and splits - {"train"}:
            self._log.add("folder of a split is not here", where, entry, action="passed over")
            return
        shown = self._folder.shown
        raise UserError(
            f"the images of {key} are not here: {entry}",
            where=str(shown / where),
            fix=f"let {key} name a folder or a list below {shown}, or take the line out; without "
            "val, images are chosen at random to be scored on",
        )

    def _add(self, entry: str, base: Json, file: Path, split: Split) -> bool:
        """Tells whether a folder or list of images is here."""
        literal, others = _places(entry, base, file.parent, self._folder.root)
        for place in (*literal, *others):
            if place != self._folder.root and not self._folder.images_root.holds(place):
                continue
            if place not in literal and self._folders.get(place, split) != split:
                continue  # the end of two paths, as `images` of two machines
            if place.is_dir() and place in literal:  # it may be empty
                # Files have the names behind the links.
                self._folders[Path(os.path.realpath(place))] = split
                return True
            if folder := self._folder.folder_like(Path(os.path.realpath(place))):
                self._folders[folder] = split
                return True
            if place.suffix == ".txt" and place.is_file():
                self._add_list(place, split)
                return True
        return False

    def _add_list(self, file: Path, split: Split) -> None:
        """Adds the images of a list.

        Raises:
            UserError: none of them is here.
        """
        self._folder.used.add(file)
        names = [name.strip("\"'") for name in read_lines(file)]
        paths = [self._folder.image(name, file, file.parent, self._log) for name in names]
        here = [path for path in paths if path is not None and self._folder.has(path)]
        if names and not here:
            raise UserError(
                f"none of the images of {split} is here: {names[0]}",
                where=f"{self._folder.shown / self._folder.relative(file)}:1",
                fix="let the list name images of the folder, or take it out of the folder",
            )
        if len(here) < len(names):
            known = {*here}
            absent = next(n for n, p in zip(names, paths, strict=True) if p not in known)
            where = self._folder.relative(file)
            self._log.add("image of a list is not here", where, absent, action="passed over")
        self._images |= dict.fromkeys(here, split)


def _stated(entries: Json) -> list[str]:
    """Returns the paths of a split; YAML's nothing is none."""
    listed = entries if isinstance(entries, list) else [entries]
    return [e for e in listed if isinstance(e, str) and e.strip() not in ("", "~", "null")]


def _places(entry: str, base: Json, near: Path, root: Path) -> tuple[list[Path], list[Path]]:
    """Returns where an entry may lie: as it is written, and by the end of the path.

    Roboflow writes `../train/images` for `train/images`.
    """
    entry = entry.strip().strip("\"'").replace("\\", "/")
    drive = PureWindowsPath(entry).drive
    under = [near / base.replace("\\", "/") / entry] if isinstance(base, str) else []
    literal = [] if drive else [*under, near / entry]
    parts = [p for p in PurePosixPath(entry).parts if p not in ("..", "/", drive)]
    ends = [near.joinpath(*parts), *(root.joinpath(*parts[n:]) for n in range(len(parts)))]
    normal = [[Path(os.path.normpath(place)) for place in places] for places in (literal, ends)]
    return normal[0], normal[1]
