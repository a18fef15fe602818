"""Lists image files by patterns, in folders and buckets."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stillbox.errors import UserError
from stillbox.records.image_files import IMAGE_SUFFIXES, MAX_IMAGE_BYTES

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_WILD = re.compile(r"[*?\[]")
# In an address, a question mark begins the options of the file system.
_WILD_IN_ADDRESS = re.compile(r"[*\[]")
_WILDCARDS = re.compile(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_PART_BYTES = 2**22


@dataclass(frozen=True)
class ImageFile:
    """A file on a file system. It can be pickled."""

    name: str
    """A path as the user gave it, or an address such as `s3://bucket/photos/1.jpg`."""
    filesystem: "FileSystem"
    path: str
    """On the file system."""

    def read(self) -> bytes:
        """Returns its content.

        Raises:
            OSError: it cannot be read.
            UserError: it is too large for an image.
        """
        content = io.BytesIO()
        with self.filesystem.open_input_stream(self.path) as stream:
            # Some streams return less than they are asked for.
            while content.tell() <= MAX_IMAGE_BYTES and (part := stream.read(_PART_BYTES)):
                content.write(part)
        if content.tell() > MAX_IMAGE_BYTES:
            problem = f"the file has more than {MAX_IMAGE_BYTES:,} bytes"
            raise UserError(problem, where=self.name, fix="give an image file")
        return content.getvalue()


class Listing(NamedTuple):
    """Files that match patterns."""

    images: list[ImageFile]
    """Sorted by name, each once."""
    others: int
    """Number of other files that match a pattern without a suffix."""


def list_images(patterns: Sequence[str]) -> Listing:
    """Returns the files that match patterns.

    Args:
        patterns: files, folders, or patterns with `*`, `?`, `[...]` and, for any depth, `**`. Each
            is a path of this machine or an address of a file system of pyarrow or fsspec, as
            `s3://bucket/photos/**` (`?` is no wildcard there). If the last part of a pattern has
            no suffix, as in `photos/**`, only files with an image's suffix match. Hidden files are
            left out.

    Raises:
        UserError: a pattern matches nothing, or cannot be listed.
    """
    images: dict[str, ImageFile] = {}
    others = 0
    for pattern in patterns:
        listing = _list_one(pattern)
        images |= {image.name: image for image in listing.images}
        others += listing.others
    return Listing([images[name] for name in sorted(images)], others)


def file_system(place: str) -> "tuple[FileSystem, str]":
    """Returns the file system of a path or an address, and the path there.

    Raises:
        UserError: there is no file system for such an address.
    """
    import fsspec
    import pyarrow
    from pyarrow import fs

    if "://" not in place:
        return fs.LocalFileSystem(), str(Path(place).expanduser().absolute())
    try:
        system, path = fs.FileSystem.from_uri(place)
    except pyarrow.ArrowInvalid:
        try:
            other, path = fsspec.core.url_to_fs(place)
        except (ValueError, ImportError) as error:
            problem = f"there is no file system for this address: {error}"
            fix = "give a path, s3://..., gs://..., or install the package of fsspec for it"
            raise UserError(problem, where=place, fix=fix) from error
        system = fs.PyFileSystem(fs.FSSpecHandler(other))
    return system, path


def _list_one(pattern: str) -> Listing:
    from pyarrow import fs

    base, tail, options = _split(pattern)
    system, path = file_system((base or ".") + options)
    try:
        if not tail:
            info = system.get_file_info(path)
            if info.type == fs.FileType.File:
                return Listing([ImageFile(pattern, system, path)], 0)
            tail = "**"
        selector = fs.FileSelector(path, recursive="/" in tail or "**" in tail)
        infos = system.get_file_info(selector)
        below = [info.path[len(path) :].lstrip("/") for info in infos if info.is_file]
    except UnicodeError as error:
        problem, fix = (
            "a file name is not UTF-8 text, and a table cannot hold it",
            "rename the file",
        )
        raise UserError(problem, where=pattern, fix=fix) from error
    except FileNotFoundError as error:
        problem = "there is no such image file or folder"
        raise UserError(problem, where=pattern, fix="check the spelling") from error
    except OSError as error:
        fix = "check the permissions"
        raise UserError(f"cannot be listed: {error}", where=pattern, fix=fix) from error
    prefix = base if not base or base.endswith("/") else f"{base}/"
    compiled = _compiled(tail, pattern)
    names = [name for name in below if _fits(name, tail, compiled)]
    matched = len(names)
    if "." not in tail.rpartition("/")[2]:
        names = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    if not names:
        raise UserError("matches no image", where=pattern, fix="give a folder or a pattern in it")
    root = path.rstrip("/")
    images = [ImageFile(prefix + name, system, f"{root}/{name}") for name in names]
    return Listing(images, matched - len(names))


def _split(pattern: str) -> tuple[str, str, str]:
    """Returns the folder before the first wildcard, the rest, and the options of an address."""
    if "://" in pattern:
        pattern, mark, options = pattern.partition("?")
        wild = _WILD_IN_ADDRESS.search(pattern)
        options = mark + options
    else:
        # An existing folder with exactly this name, such as `run[1]`, is not a pattern.
        there = pattern
        while there and not Path(there).exists():
            there = there.rpartition("/")[0]
        wild, options = _WILD.search(pattern, len(there)), ""
    if wild is None or (not options and Path(pattern).exists()):
        return pattern, "", options
    base, slash, _ = pattern[: wild.start()].rpartition("/")
    return base + slash, pattern[len(base + slash) :], options


def _compiled(tail: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile("".join(map(_expression, _WILDCARDS.split(tail))))
    except re.error as error:
        problem, fix = f"this is no pattern: {error}", "give a range from its lower end, [a-z]"
        raise UserError(problem, where=pattern, fix=fix) from error


def _fits(name: str, tail: str, compiled: re.Pattern[str]) -> bool:
    hidden = name.startswith(".") or "/." in name
    if hidden and not (tail.startswith(".") or "/." in tail):
        return False
    return compiled.fullmatch(name) is not None


def _expression(part: str) -> str:
    if part.startswith("[") and part.endswith("]"):
        return f"[^{part[2:]}" if part.startswith("[!") else part
    return _MEANING.get(part) or re.escape(part)
