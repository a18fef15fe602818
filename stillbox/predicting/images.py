"""The images to detect in: the files that paths, folders and patterns name, and their pixels."""

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeGuard

import numpy as np
from PIL import Image

from stillbox.errors import UserError
from stillbox.image_kind import RGB_8, ImageKind
from stillbox.inputs.decode import ImageError, decode_image, in_range, pillow_pixels
from stillbox.predicting.backend import Pixels
from stillbox.records.image_files import IMAGE_SUFFIXES, MAX_IMAGE_BYTES, turned_upright
from stillbox.records.source import glob_files
from stillbox.references import Parameter
from stillbox.untrusted import read_untrusted

_SHOWN = 5

ImageLike = str | PathLike[str] | bytes | np.ndarray | Image.Image
"""A path, an image file's bytes, an array `[H, W, 3]`, `[H, W, 4]`, `[H, W, 1]` or `[H, W]`, or a
PIL image. Arrays are uint8; uint16 too for a model of more bits, with the values of its files."""


def as_sequence(images: ImageLike | Sequence[ImageLike]) -> Iterable[ImageLike]:
    """Returns one image as a list; an array of four dimensions is a sequence."""
    if isinstance(images, np.ndarray):
        return [images] if images.ndim < 4 else images
    return [images] if isinstance(images, str | PathLike | bytes | Image.Image) else images


def read_image(image: ImageLike, kind: ImageKind = RGB_8) -> tuple[Pixels, str]:
    """Returns the pixels of a kind, upright, and the file's path or an empty text.

    Raises:
        UserError: there is no such file, it is no image, or an array has another shape or type.
    """
    if isinstance(image, Image.Image):
        return _from_pillow(image, kind), ""
    if isinstance(image, np.ndarray):
        return _from_array(image, kind), ""
    if isinstance(image, bytes):
        return _decoded(image, "image", kind), ""
    if not isinstance(image, str | PathLike):
        raise UserError(
            f"a {type(image).__name__} is no image",
            fix="give a path, bytes, a uint8 array [H, W, 3] or a PIL image",
        )
    path = Path(image)
    refuse_missing([path])
    where = str(path)
    content = read_untrusted(path, most=MAX_IMAGE_BYTES, where=where, fix="give an image file")
    return _decoded(content, where, kind), where


def refuse_missing(paths: Sequence[Path]) -> None:
    """Refuses a list of image files if some do not exist.

    Raises:
        UserError: names the first of them.
    """
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        problem = "there is no such image file"
        fix = "check the spelling; files, folders and patterns as FOLDER/*.jpg are taken"
        raise UserError(problem, where=", ".join(missing[:_SHOWN]) + more, fix=fix)


def _decoded(content: bytes, where: str, kind: ImageKind) -> Pixels:
    try:
        return decode_image(content, kind=kind, apply_exif=True)
    except ImageError as error:
        fix = "leave it out, or save it again"
        raise UserError(f"cannot be decoded: {error}", where=where, fix=fix) from error


def _from_pillow(image: Image.Image, kind: ImageKind) -> Pixels:
    try:
        return pillow_pixels(turned_upright(image), kind)
    except ValueError as error:
        raise UserError(f"an image has {error}") from error


def _from_array(array: np.ndarray, kind: ImageKind) -> Pixels:
    if array.dtype != np.uint8 and (array.dtype != np.uint16 or kind.bits == 8):
        raise UserError(
            f"an image of type {array.dtype} is not supported",
            fix="give uint8 in 0..255; for floats in 0..1, (image * 255).astype('uint8')",
        )
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise UserError(
            f"an array of shape {list(array.shape)} is no image",
            fix="give [H, W, 3], RGB; [H, W] and [H, W, 1] are grayscale, [H, W, 4] is RGBA",
        )
    try:
        return in_range(_with_channels_of(array, kind), kind)
    except ValueError as error:
        raise UserError(f"an image: {error}", fix="give one as the model was trained on") from error


def _with_channels_of(array: np.ndarray, kind: ImageKind) -> np.ndarray:
    """Returns an array with other channels, as `decode_image` has them of a file."""
    given = array.shape[2]
    if kind.channels == 4 and given != 4:
        raise ValueError(f"it has {given} channels, and the model takes RGB and a fourth")
    if given == 1 or kind.channels == 4:
        return np.ascontiguousarray(np.repeat(array, max(kind.channels // given, 1), axis=2))
    colors = np.ascontiguousarray(array[..., :3])
    if kind.channels == 3:
        return colors
    if colors.dtype != np.uint8:
        raise ValueError("it has colours of more than 8 bits, and the model takes brightness")
    return np.array(Image.fromarray(colors).convert("L"))[..., None]


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
    """Files of folders that are neither images nor videos."""


def list_inputs(words: Sequence[str], *, recursive: bool = False) -> Inputs:
    """Returns the files of paths, folders and patterns, in their order.

    A file is a video by its suffix, otherwise an image. A folder, and a pattern without a suffix in
    its last part, stands for its images and videos, without hidden ones, in natural order: `2.jpg`
    comes before `10.jpg`.

    Patterns have `*`, `?`, `[...]` and, for any depth, `**`; `recursive` adds files of subfolders.

    Raises:
        UserError: a word names nothing, or no image or video.
    """
    named = (Path(word) for word in words if not glob.has_magic(word))
    refuse_missing([path for path in named if not path.is_dir()])
    files: dict[Path, None] = {}
    passed_over = 0
    for word in words:
        matches = _expand(word, recursive)
        usable = _usable(word, matches)
        if not usable:
            raise _nothing_in(word, recursive)
        passed_over += len(matches) - len(usable)
        files |= dict.fromkeys(usable)
    images = [path for path in files if not is_video(path)]
    return Inputs(images, [path for path in files if is_video(path)], passed_over)


def names_many(image: object) -> TypeGuard[str | PathLike[str]]:
    """Returns whether a path is a folder or a pattern, which names any number of images."""
    if not isinstance(image, str | PathLike):
        return False
    word = os.fspath(image)
    return Path(word).is_dir() or _is_pattern(word)


def each_image(images: Iterable[ImageLike]) -> Iterator[ImageLike]:
    """Yields the images, with the images of a folder or pattern in place of its path.

    Raises:
        UserError: a folder or pattern has no image, or has videos.
    """
    for image in images:
        if not names_many(image):
            yield image
            continue
        word = os.fspath(image)
        files = _usable(word, _expand(word, recursive=False))
        if not files:
            fix = "give a folder of images, or for those of subfolders FOLDER/**/*.jpg"
            raise UserError("there is no image", where=word, fix=fix)
        if any(map(is_video, files)):
            fix = "give a pattern of the images, as FOLDER/*.jpg; `stillbox predict` takes both"
            raise UserError("there are videos among the images", where=word, fix=fix)
        yield from files


def check_output(
    folder: Path, words: Sequence[str], files: Iterable[Path], *, recursive: bool
) -> None:
    """Refuses to write results among the inputs, where a later run would find them.

    Raises:
        UserError: the folder is one of the inputs', or lies in one that is searched.
    """
    target = folder.resolve()
    searched = [Path(word) for word in words if recursive and Path(word).is_dir()]
    parents = {path.parent for path in files}
    inside = any(folder.resolve() in target.parents for folder in searched)
    if inside or target in {folder.resolve() for folder in (*parents, *searched)}:
        problem = (
            "the output folder lies among the images: results could replace them, and a later run "
            "would take its own pictures for images"
        )
        raise UserError(
            problem, where=str(folder), fix=f"choose another folder with {Parameter('output')}"
        )


def is_video(path: Path) -> bool:
    """Returns whether a file is a video by its suffix."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def _is_pattern(word: str) -> bool:
    return glob.has_magic(word) and not Path(word).exists()


def _usable(word: str, matches: list[Path]) -> list[Path]:
    """Returns the files that a word stands for: of a folder, only images and videos."""
    all_kinds = Path(word).is_dir() or (_is_pattern(word) and "." not in Path(word).name)
    return [path for path in matches if _is_usable(path)] if all_kinds else matches


def _expand(word: str, recursive: bool) -> list[Path]:
    if _is_pattern(word):
        matches = glob_files(Path(word), recursive=True)
        return sorted((path for path in matches if path.is_file()), key=_natural)
    if Path(word).is_file():
        return [Path(word)]
    matches = []
    for folder, below, names in os.walk(word):
        below[:] = [name for name in below if recursive and not name.startswith(".")]
        paths = (Path(folder) / name for name in names if not name.startswith("."))
        matches += [path for path in paths if path.is_file()]
    return sorted(matches, key=_natural)


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
        fix = f"add {Parameter('recursive')}: its subfolders hold some"
    return UserError("the folder holds no image or video", where=word, fix=fix)
