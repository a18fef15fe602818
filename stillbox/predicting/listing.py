"""Finds the images and videos that paths, folders and patterns name."""

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stillbox.errors import UserError
from stillbox.predicting.images import ImageLike, refuse_missing
from stillbox.records.image_files import IMAGE_SUFFIXES
from stillbox.records.patterns import glob_files

VIDEO_SUFFIXES = (
    *(".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv"),
    *(".ts", ".mts", ".3gp", ".ogv", ".mjpeg", ".mjpg"),
)
_NUMBER = re.compile(r"(\d+)")


class Inputs(NamedTuple):
    """Files to detect in, each once."""

    images: list[Path]
    videos: list[Path]
    passed_over: int
    """Files of folders that are neither by their suffix."""


def list_inputs(words: Sequence[str], *, recursive: bool = False) -> Inputs:
    """Returns the files of paths, folders and patterns, in their order.

    A file is a video by its suffix, otherwise an image. Of a folder, and of a pattern whose last
    part has no suffix, the images and videos are taken, in natural order (`2.jpg` before `10.jpg`)
    and without hidden ones.

    Args:
        words: files, folders, or patterns with `*`, `?`, `[...]` and, for any depth, `**`.
        recursive: take the files of subfolders too.

    Raises:
        UserError: a word names nothing, or no image or video.
    """
    refuse_missing([Path(word) for word in words if not _is_there(word)])
    files: dict[Path, None] = {}
    passed_over = 0
    for word in words:
        found = _expand(word, recursive)
        usable = _usable(word, found)
        if not usable:
            raise _nothing_in(word, recursive)
        passed_over += len(found) - len(usable)
        files |= dict.fromkeys(usable)
    images = [path for path in files if not is_video(path)]
    return Inputs(images, [path for path in files if is_video(path)], passed_over)


def names_many(image: object) -> bool:
    """Returns whether a path is a folder or a pattern, which names any number of images."""
    if not isinstance(image, str | os.PathLike):
        return False
    word = os.fspath(image)
    return Path(word).is_dir() or _is_pattern(word)


def each_image(images: Iterable[ImageLike]) -> Iterator[ImageLike]:
    """Yields the images, those of a folder or pattern in place of its path.

    Raises:
        UserError: a folder or pattern has no image, or has videos.
    """
    for image in images:
        if not names_many(image):
            yield image
            continue
        word = os.fspath(image)  # type: ignore[arg-type]
        files = _usable(word, _expand(word, recursive=False))
        if not files:
            fix = "give a folder of images, or for those of subfolders FOLDER/**/*.jpg"
            raise UserError("there is no image", where=word, fix=fix)
        if any(map(is_video, files)):
            raise UserError(
                "there are videos among the images",
                where=word,
                fix="give a pattern of the images, as FOLDER/*.jpg; `stillbox predict` takes both",
            )
        yield from files


def check_output(
    folder: Path, words: Sequence[str], files: Iterable[Path], *, recursive: bool
) -> None:
    """Checks that results do not come among the inputs, where a later run would find them.

    Raises:
        UserError: the folder is one of the inputs', or lies in one that is searched.
    """
    target = folder.resolve()
    searched = [Path(word) for word in words if recursive and Path(word).is_dir()]
    parents = {path.parent for path in files}
    inside = any(one.resolve() in target.parents for one in searched)
    if inside or target in {one.resolve() for one in (*parents, *searched)}:
        raise UserError(
            "the output folder lies among the images: results could replace them, and a later run "
            "would take its own pictures for images",
            where=str(folder),
            fix="choose another folder with --output",
        )


def is_video(path: Path) -> bool:
    """Returns whether a file is a video by its suffix."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def _is_there(word: str) -> bool:
    return glob.has_magic(word) or Path(word).is_file() or Path(word).is_dir()


def _is_pattern(word: str) -> bool:
    return glob.has_magic(word) and not Path(word).exists()


def _filtered(word: str) -> bool:
    """Returns whether only files with a known suffix are meant."""
    return Path(word).is_dir() or (_is_pattern(word) and "." not in Path(word).name)


def _usable(word: str, found: list[Path]) -> list[Path]:
    """Returns those of the files of a word that it means."""
    return [path for path in found if _is_usable(path)] if _filtered(word) else found


def _expand(word: str, recursive: bool) -> list[Path]:
    """Returns the files of a word, in natural order."""
    if _is_pattern(word):
        found = glob_files(Path(word), recursive=True)
        return sorted((path for path in found if path.is_file()), key=_natural)
    if Path(word).is_file():
        return [Path(word)]
    found = []
    for folder, below, names in os.walk(word):
        below[:] = [name for name in below if recursive and not name.startswith(".")]
        paths = (Path(folder) / name for name in names if not name.startswith("."))
        found += [path for path in paths if path.is_file()]
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[list[str | int]]:
    """Returns a key by which numbers in names are ordered by their value."""
    return [
        [int(word) if word.isdecimal() else word.casefold() for word in _NUMBER.split(part)]
        for part in path.parts
    ]


def _is_usable(path: Path) -> bool:
    return path.suffix.lower() in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)


def _nothing_in(word: str, recursive: bool) -> UserError:
    if _is_pattern(word):
        return UserError("matches no image or video", where=word, fix="check the pattern")
    fix = "give a folder of images; their names end in " + ", ".join(IMAGE_SUFFIXES)
    if not recursive and any(map(_is_usable, _expand(word, True))):
        fix = "add --recursive: its subfolders hold some"
    return UserError("the folder holds no image or video", where=word, fix=fix)
