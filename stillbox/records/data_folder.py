"""A folder of images and annotations in any layout: its files, listed once."""

import difflib
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar, cast
from urllib.parse import unquote

from stillbox.errors import UserError
from stillbox.printing import printable_line
from stillbox.records.annotations import ImageRoot, is_absolute, line_of
from stillbox.records.file_kinds import ARCHIVES
from stillbox.records.foreign_files import Json, read_json
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
            problem = "this is a file" if root.is_file() else "there is no such folder"
            fix = f"give its folder, {root.parent}" if root.is_file() else "give a folder of images"
            if root.is_file() and root.suffix.lower() in ARCHIVES:
                problem, fix = "this is an archive", "unpack it, and give the folder"
            raise UserError(problem, where=str(root), fix=fix)
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
        self._images_by_path = {str(image): image for image in self.images}
        self.used: set[Path] = set()
        """Files that a reader has used beside the annotations, and images that it has reported."""
        self._memo: dict[tuple[object, Path], object] = {}
        self._parsed: tuple[Path | None, int, Json] = (None, 0, None)

    @cached_property
    def images(self) -> list[Path]:
        """The image files."""
        return [file for file in self.files if file.suffix.lower() in IMAGE_SUFFIXES]

    def with_suffix(self, *suffixes: str) -> list[Path]:
        """Returns the files with one of the suffixes, in lower case."""
        if len(suffixes) == 1:
            return list(self._by_suffix.get(suffixes[0], ()))
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

        The content of the largest file is kept until `forget`: recognising and reading parse it
        once. All files together may exceed the memory.

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
        """Returns the name of a file for messages, within the folder if it lies there."""
        try:
            return printable_line(path.relative_to(self.root).as_posix())
        except ValueError:
            return printable_line(path.as_posix())

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

        It is looked up relative to the folder `near`, then by the end of its name in all folders,
        then by names that differ in form only, see `_loose`. Several that fit equally well are a
        bad record, and the result is None.

        Raises:
            UserError: the name leads out of the folder, and no image in it has such a name.
        """
        # A relative name of a file that the folder lists is not looked up on the disk.
        place = os.path.normpath(f"{near}/{name}".replace("\\", "/"))
        if place in self._images_by_path and not is_absolute(name):
            return self._images_by_path[place]
        try:
            path = self.images_root.path(name, annotation, near)
        except UserError:
            path = None
        if path and (known := self._images_by_path.get(os.path.realpath(path))):
            return known
        best = self._named(name, path or annotation)
        if len(best) > 1:
            reason = "image name fits several files"
            # Looking up a line takes long in a large file.
            where = str(annotation) if log.has_enough(reason) else line_of(annotation, name)
            log.bad_record(reason, where, name)
            return None
        if best and best[0].name != PurePosixPath(name.replace("\\", "/")).name:
            reason, where = "image name that differs in form", self.relative(annotation)
            log.add(reason, where, f"{name}: {self.relative(best[0])}", action="matched")
        # The path of a name that leads out is refused again, with its reason.
        return best[0] if best else path or self.images_root.path(name, annotation, near)

    def _named(self, name: str, near: Path) -> list[Path]:
        """Returns the images with the longest end of a name in common; see `image`."""
        wanted = tuple(
            part for part in PurePosixPath(name.replace("\\", "/")).parts if part != ".."
        )
        if not wanted:
            return []
        if same := self._by_name.get(wanted[-1]):
            return _best(same, lambda other: (_tail(other.parts, wanted), _shared(other, near)))
        loose = tuple(map(_loose, (*wanted[:-1], _without_query(wanted[-1]))))
        stem = image_stem(loose[-1])
        matches = self._by_loose.get(loose[-1]) or self._by_loose_stem.get(stem, [])
        return _best(
            matches,
            lambda other: (_tail(tuple(map(_loose, other.parts)), loose), _shared(other, near)),
        )

    def image_of_stem(self, stem: str, near: Path, named: str = "") -> Path | None:
        """Returns the image of a stem that is nearest to the file `near`, or the first by name.

        Of several with one stem in a folder, the one with the suffix of `named` counts, a name
        that the annotation gives.

        Raises:
            UserError: the only image of this name is such a link.
        """
        matches = self._by_stem.get(stem, []) or self._by_loose_stem.get(_loose(stem), [])
        if len(matches) == 1:
            return matches[0]
        beside = self._in_place.get((near.parent, stem), [])
        suffix = PurePosixPath(named.replace("\\", "/")).suffix.lower()
        best = _best(
            beside or matches,
            lambda other: (_shared(other, near), other.suffix.lower() == suffix),
        )
        if not best:
            for link in self.links:
                if link.stem == stem and link.suffix.lower() in IMAGE_SUFFIXES:
                    self.images_root.path(link.relative_to(self.root).as_posix(), near)
        return min(best, default=None)

    def images_of_stem(self, stem: str) -> Sequence[Path]:
        """Returns the images of a stem in all folders."""
        return self._by_stem.get(stem, [])

    def has(self, path: Path) -> bool:
        """Tells whether a path is one of the files, whatever its suffix."""
        return str(path) in self._images_by_path or path in self._file_set

    @cached_property
    def _file_set(self) -> set[Path]:
        return {*self.files}

    def folder_like(self, place: Path) -> Path | None:
        """Returns the folder of images with the same path but for capitals, if there is one."""
        return self._by_loose_folder.get(_loose(str(place)))

    @cached_property
    def _by_loose_folder(self) -> dict[str, Path]:
        folders = {above for file in self.images for above in file.parents}
        inside = (folder for folder in folders if folder.is_relative_to(self.root))
        return {_loose(str(folder)): folder for folder in inside}

    def nearest_name(self, path: Path) -> str:
        """Returns the most similar name of an image for a message; it takes long."""
        names = {file.name: file for file in self.images[:_MOST_COMPARED]}
        close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
        return f"there is {self.relative(names[close[0]])}" if close else "no name is similar"

    @cached_property
    def _by_suffix(self) -> dict[str, list[Path]]:
        return _grouped((file.suffix.lower(), file) for file in self.files)

    @cached_property
    def _by_loose(self) -> dict[str, list[Path]]:
        return _grouped((_loose(file.name), file) for file in self.images)

    @cached_property
    def _by_loose_stem(self) -> dict[str, list[Path]]:
        return _grouped((_loose(file.stem), file) for file in self.images)

    @cached_property
    def _in_place(self) -> dict[tuple[Path, str], list[Path]]:
        """The images beside label files: in their folder, or in `images` for `labels`."""
        places: dict[tuple[Path, str], list[Path]] = defaultdict(list)
        for file in self.images:
            places[file.parent, file.stem].append(file)
            if "images" in file.parent.parts:
                places[_with_last(file.parent, "images", "labels"), file.stem].append(file)
        return places

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        return _grouped((file.name, file) for file in self.images)

    @cached_property
    def _by_stem(self) -> dict[str, list[Path]]:
        return _grouped((file.stem, file) for file in self.images)

    def _own(self, file: Path) -> bool:
        inside = not self._leads_out(file) and file.is_file()
        if not inside:
            (self.links if self._leads_out(file) else self.special).append(file)
        return inside

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


_MOST_COMPARED = 10_000
_QUERY = re.compile(r"\?[^/]*=[^/]*$")


def _without_query(name: str) -> str:
    """Returns a name without `?token=...`, as in addresses of storage."""
    return _QUERY.sub("", name)


def _loose(name: str) -> str:
    """Returns a name in one form: composed characters, small letters, `%20` decoded."""
    return unicodedata.normalize("NFC", unquote(name)).casefold()


def image_stem(name: str) -> str:
    """Returns the stem of an image that a list names, with or without folder and suffix."""
    path = PurePosixPath(name)
    return path.stem if path.suffix.lower() in IMAGE_SUFFIXES else path.name


def _with_last(folder: Path, part: str, other: str) -> Path:
    """Returns a folder with its last part of a name replaced."""
    parts = list(folder.parts)
    parts[len(parts) - 1 - parts[::-1].index(part)] = other
    return Path(*parts)


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
    return [path for path, points in zip(paths, scores, strict=True) if points == max(scores)]


def _tail(parts: Sequence[str], wanted: Sequence[str]) -> int:
    """Counts the last parts of two paths that are equal."""
    pairs = zip(reversed(parts), reversed(wanted), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _shared(path: Path, near: Path) -> int:
    """Counts the folders that two paths have in common, as `train` of `train/images`."""
    return len(set(path.parts[:-1]) & set(near.parts[:-1]))
