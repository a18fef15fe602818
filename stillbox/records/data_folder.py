"""A folder of images and annotations in any layout: its files, listed once."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar, cast

from stillbox.errors import UserError
from stillbox.printing import printable_line
from stillbox.records.annotations import ImageRoot, Json, line_of, read_json
from stillbox.records.image_files import IMAGE_SUFFIXES
from stillbox.records.problems import ConversionLog

FINISHED = "conversion.json"
"""File of a folder that `stillbox.records.folder` wrote; its records are not data."""

T = TypeVar("T")
Split = Literal["train", "val", "test"]
_SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class DataFolder:
    """The files below a folder, without hidden ones.

    `root` is the folder, or a YAML file in it, such as YOLO's `data.yaml`. `without` are folders
    below it that do not belong to the data.

    Raises:
        UserError: there is no such folder.
    """

    def __init__(self, root: str | Path, *, without: Iterable[Path] = ()) -> None:
        root = Path(root)
        if root.is_file() and root.suffix.lower() in (".yaml", ".yml"):
            root = root.parent
        if not root.is_dir():
            what = "this is a file" if root.is_file() else "there is no such folder"
            fix = f"give its folder, {root.parent}" if root.is_file() else "give a folder of images"
            raise UserError(what, where=str(root), fix=fix)
        self.shown = root
        """The folder as it was given."""
        self.root = root.resolve()
        self.images_root = ImageRoot(self.root)
        self.links: list[Path] = []
        """Symbolic links that lead out of the folder; they are not followed."""
        self.special: list[Path] = []
        """Pipes, devices, sockets and links to nothing; they are not opened."""
        skipped = {path.resolve() for path in without}
        self.files: list[Path] = []
        for folder, subfolders, names in os.walk(self.root):
            at = Path(folder)
            if FINISHED in names and at != self.root:
                subfolders.clear()
                continue
            subfolders[:] = sorted(
                n for n in subfolders if not _hidden(n) and at / n not in skipped
            )
            self.links += [at / name for name in subfolders if self._leads_out(at / name)]
            self.files += [at / n for n in sorted(names) if not _hidden(n) and self._own(at / n)]
        self._image_set = set(self.images)
        self._memo: dict[tuple[object, Path], object] = {}
        self._parsed: tuple[Path | None, int, Json] = (None, 0, None)

    @cached_property
    def images(self) -> list[Path]:
        """The image files."""
        return [file for file in self.files if file.suffix.lower() in IMAGE_SUFFIXES]

    def with_suffix(self, *suffixes: str) -> list[Path]:
        """Returns the files with one of the suffixes, in lower case."""
        return [file for file in self.files if file.suffix.lower() in suffixes]

    def memoized(self, look: Callable[..., T], file: Path, *others: object) -> T:
        """Returns `look(file, *others)`, which is called once for all formats."""
        key = look, file
        if key not in self._memo:
            self._memo[key] = look(file, *others)
        return cast(T, self._memo[key])

    def matching(self, look: Callable[[Path], bool], *suffixes: str) -> list[Path]:
        """Returns the files with one of the suffixes that a function accepts."""
        return [file for file in self.with_suffix(*suffixes) if self.memoized(look, file)]

    def json(self, file: Path) -> Json:
        """Returns the content of a JSON file.

        Keeps that of the largest file until `forget`: recognising and reading parse it once. All
        files together may exceed the memory.

        Raises:
            UserError: see `read_json`.
        """
        kept, most, content = self._parsed
        if file != kept:
            content = read_json(file)
            if (size := file.stat().st_size) >= most:
                self._parsed = file, size, content
        return content

    def forget(self) -> None:
        """Releases the memory of `json`."""
        self._parsed = (None, 0, None)

    def relative(self, path: Path) -> str:
        """Returns the name of a file within the folder, for messages."""
        return printable_line(path.relative_to(self.root).as_posix())

    def behind_links(self) -> UserError | None:
        """Returns the error for missing files, if a link out of the folder hides some."""
        if not self.links:
            return None
        link, target = self.links[0], os.path.realpath(self.links[0])
        fix, parent = f"copy {target} to its place", os.path.commonpath([self.root, target])
        if parent != Path(parent).anchor:
            fix += f", or give {parent}, which holds both"
        return UserError(
            f"images or annotations are missing, and {self.relative(link)} is a symbolic link that "
            "leads out of the folder, which is not followed",
            where=str(self.shown),
            fix=fix,
        )

    def image(self, name: str, annotation: Path, near: Path, log: ConversionLog) -> Path | None:
        """Returns the image that an annotation names, or the path where it was expected.

        It is looked up relative to the folder `near`, then by the end of its name in all folders.
        Several that fit equally well are a bad record, and the result is None.

        Raises:
            UserError: the name leads out of the folder.
        """
        path = self.images_root.path(name, annotation, near)
        for known in (path, Path(os.path.realpath(path))):
            if known in self._image_set:
                return known
        wanted = PurePosixPath(name.replace("\\", "/")).parts
        found = self._by_name.get(path.name, [])
        best = _best(found, lambda other: (_tail(other.parts, wanted), _shared(other, path)))
        if len(best) > 1:
            reason = "image name fits several files"
            # Looking up a line takes long in a large file.
            where = str(annotation) if log.has_enough(reason) else line_of(annotation, name)
            log.bad_record(reason, where, name)
            return None
        return best[0] if best else path

    def image_of_stem(self, stem: str, near: Path) -> Path | None:
        """Returns the image of a stem that is nearest to the file `near`, or the first by name.

        Raises:
            UserError: the only image of this name is such a link.
        """
        best = _best(self._by_stem.get(stem, []), lambda other: (_shared(other, near),))
        if not best:
            for link in self.links:
                if link.stem == stem and link.suffix.lower() in IMAGE_SUFFIXES:
                    self.images_root.path(link.relative_to(self.root).as_posix(), near)
        return min(best, default=None)

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        return _grouped((file.name, file) for file in self.images)

    @cached_property
    def _by_stem(self) -> dict[str, list[Path]]:
        return _grouped((file.stem, file) for file in self.images)

    def _own(self, file: Path) -> bool:
        own = not self._leads_out(file) and file.is_file()
        if not own:
            (self.links if self._leads_out(file) else self.special).append(file)
        return own

    def _leads_out(self, path: Path) -> bool:
        return path.is_symlink() and not self.images_root.holds(path)


def folder_split(path: Path) -> Split | None:
    """Returns the split that the nearest folder above a file states, as `val2017/` does."""
    for part in reversed(path.parts[:-1]):
        name = re.sub(r"[\W\d_]+$", "", part).lower()
        if name in _SPLIT_NAMES:
            return _SPLIT_NAMES[name]
    return None


def name_split(path: Path) -> Split | None:
    """Returns the split that the name of an annotation file, or else a folder above, states."""
    for word in re.split(r"[\W\d_]+", path.stem.lower()):
        if word in _SPLIT_NAMES:
            return _SPLIT_NAMES[word]
    return folder_split(path)


def word_split(word: object) -> Split | None:
    """Returns the split that a word means, as `Validation`."""
    return _SPLIT_NAMES.get(str(word).strip().lower())


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _grouped(pairs: Iterable[tuple[str, Path]]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = defaultdict(list)
    for key, file in pairs:
        groups[key].append(file)
    return groups


def _best(paths: Sequence[Path], score: Callable[[Path], tuple[int, ...]]) -> list[Path]:
    if len(paths) < 2:
        return list(paths)
    scores = [score(path) for path in paths]
    return [path for path, own in zip(paths, scores, strict=True) if own == max(scores)]


def _tail(parts: Sequence[str], wanted: Sequence[str]) -> int:
    """Counts the last parts of two paths that are equal."""
    pairs = zip(reversed(parts), reversed(wanted), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _shared(path: Path, near: Path) -> int:
    """Counts the folders that two paths have in common, as `train` of `train/images`."""
    return len(set(path.parts[:-1]) & set(near.parts[:-1]))
