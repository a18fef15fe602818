"""Pretrained weights by name: downloads them into the cache folder, and finds them there."""

import io
import json
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from stillbox.checkpoints.downloading import NoNetworkError, Progress, check_file, download
from stillbox.checkpoints.files import (
    MAX_JSON_BYTES,
    blamed,
    remove_folder,
    replace_durably,
)
from stillbox.errors import UserError, nearest
from stillbox.experiment.known_weights import KnownFile, KnownWeights, known_weights
from stillbox.records.cache import cache_folder
from stillbox.records.files import remove_tree
from stillbox.untrusted import open_untrusted, read_untrusted

_RECEIPT = "download.json"
_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_CONFIG = "pipeline.config"
# Of the files that are taken from an archive.
_MOST_BYTES, _MOST_MEMBERS = 2**32, 10_000


class MissingWeightsError(UserError):
    """There is nothing under the path or name of weights."""


def weights_folder(name: str, root: Path | None = None) -> Path:
    """Returns the folder of weights by name, whether they are there or not."""
    return (root or cache_folder() / "weights") / name


def find_weights(name: str) -> Path | None:
    """Returns what is opened of downloaded weights; None if they are not here."""
    row = known_weights().get(name)
    folder = weights_folder(name)
    return folder / row.path if row and _is_complete(row, folder) else None


def resolve_weights(path: str | Path) -> Path:
    """Returns the path of weights that are named by a path, or by the name of known weights.

    Raises:
        UserError: it is the name of weights that are not downloaded.
    """
    path = Path(path).expanduser()
    row = known_weights().get(str(path))
    if row is None or path.exists():
        return path
    found = find_weights(row.name)
    if found is None:
        what = f"the weights {row.name} are not downloaded"
        raise MissingWeightsError(what, where=str(weights_folder(row.name)), fix=how_to_get(row))
    return found


def how_to_get(row: KnownWeights) -> str:
    """Returns what to do on a machine with a network, and without one."""
    files = "\n    ".join(file.describe() for file in row.files)
    return (
        f"`stillbox weights get {row.name}`; without a network fetch\n    {files}\n  into "
        f"{weights_folder(row.name)}, then run the same command, which checks"
        f"{' and unpacks' if _is_archive(row.files[0]) else ''} it"
    )


def get_weights(
    name: str, *, root: Path | None = None, progress: Progress, again: bool = False
) -> Path:
    """Downloads known weights, unless they are there; archives are unpacked.

    Files that were put into the folder by hand are checked like downloaded ones.

    Args:
        name: see `known_weights`.
        root: parent of their folder; None: in the cache folder.
        progress: called after each piece of a file.
        again: download them even if they are there.

    Returns:
        What is opened.

    Raises:
        UserError: the name is unknown, there is no network, or a file is not what was expected.
    """
    row = known_weights().get(name)
    if row is None:
        raise UserError(f"no weights are called {name!r}", fix=nearest(name, known_weights()))
    folder = weights_folder(name, root)
    if again and folder.exists():
        remove_folder(folder)
    if _is_complete(row, folder):
        return folder / row.path
    with blamed(folder):
        folder.mkdir(parents=True, exist_ok=True)
        found = {file.name: _fetch(row, file, folder, progress) for file in row.files}
        for file in row.files:
            if _is_archive(file):
                _unpack(row, folder / file.name, folder)
        _write_receipt(folder, found)
    return folder / row.path


def read_receipt(folder: Path) -> dict[str, dict[str, int | str]]:
    """Returns size and SHA-256 of each downloaded file; nothing if there is no receipt."""
    try:
        content = json.loads(read_untrusted(folder / _RECEIPT, most=MAX_JSON_BYTES))
        return dict(content)
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _is_archive(file: KnownFile) -> bool:
    return file.name.endswith(_ARCHIVES)


def _is_complete(row: KnownWeights, folder: Path) -> bool:
    # The receipt is written last.
    return (folder / _RECEIPT).is_file() and any(
        Path(f"{folder / row.path}{ending}").is_file() for ending in ("", ".index")
    )


def _fetch(
    row: KnownWeights, file: KnownFile, folder: Path, progress: Progress
) -> dict[str, int | str]:
    target = folder / file.name
    if target.exists():
        digest = check_file(target, size=file.bytes, sha256=file.sha256, where=str(target))
    else:
        try:
            digest = download(
                file.address,
                target,
                size=file.bytes,
                sha256=file.sha256,
                progress=progress,
            )
        except NoNetworkError as error:
            raise UserError(error.what, where=error.where, fix=_by_hand(row, folder)) from error
    return {"bytes": target.stat().st_size, "sha256": digest}


def _by_hand(row: KnownWeights, folder: Path) -> str:
    files = "\n    ".join(file.describe() for file in row.files)
    return (
        f"on a machine with a network fetch\n    {files}\n  put it into {folder}, and run this "
        "command again: it needs no network then"
    )


def _write_receipt(folder: Path, found: dict[str, dict[str, int | str]]) -> None:
    """Writes size and SHA-256 of the downloaded files without a published checksum."""
    replace_durably(folder / _RECEIPT, json.dumps(found, indent=1))


def _unpack(row: KnownWeights, archive: Path, folder: Path) -> None:
    """Takes the checkpoint and its config out of an archive, and removes the archive."""
    unfinished = folder / ".unpacked"
    remove_tree(unfinished)
    try:
        with (
            open_untrusted(archive, most=_MOST_BYTES) as packed,
            tarfile.open(fileobj=packed) as file,
        ):
            for member, path in _wanted(row, file, str(archive)):
                source, target = file.extractfile(member), unfinished / path
                target.parent.mkdir(parents=True, exist_ok=True)
                # Content alone: no owner, no mode, no link.
                with target.open("wb") as copy:
                    shutil.copyfileobj(source or io.BytesIO(), copy)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        what = f"the archive cannot be unpacked: {error}"
        raise UserError(what, where=str(archive), fix="remove it, and fetch it again") from error
    if not Path(f"{unfinished / row.path}.index").is_file():
        what = f"the archive does not hold {row.path}.index"
        raise UserError(what, where=str(archive), fix="this is not the published file; remove it")
    for entry in unfinished.iterdir():
        target = folder / entry.name
        remove_tree(target)
        entry.replace(target)
    unfinished.rmdir()
    archive.unlink()


def _wanted(
    row: KnownWeights, file: tarfile.TarFile, where: str
) -> list[tuple[tarfile.TarInfo, PurePosixPath]]:
    """Returns the members that are taken, with their places below the folder."""
    fix = "this is not the published file; remove it"
    wanted, total = [], 0
    for count, member in enumerate(file):
        path = PurePosixPath(member.name)
        total += member.size
        if count >= _MOST_MEMBERS or total > _MOST_BYTES:
            what = f"the archive holds more than {_MOST_BYTES:,} bytes or {_MOST_MEMBERS:,} files"
            raise UserError(what, where=where, fix=fix)
        if not str(path).startswith(f"{row.path}.") and path.name != _CONFIG:
            continue
        if not member.isreg() or path.is_absolute() or ".." in path.parts:
            what = f"{member.name!r} in the archive is no plain file below its folder"
            raise UserError(what, where=where, fix=fix)
        wanted.append((member, path))
    return wanted
