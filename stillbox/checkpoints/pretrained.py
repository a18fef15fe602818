"""Pretrained weights by name: downloads them into the cache folder, and finds them there.

A download over HTTPS is resumed and checked; its file is complete under its name or absent.
"""

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from stillbox import __version__
from stillbox.checkpoints.files import (
    MAX_JSON_BYTES,
    blamed,
    remove_folder,
    replace_durably,
    sync_folder,
)
from stillbox.errors import UserError, nearest
from stillbox.experiment.known_weights import KnownFile, KnownWeights, known_weights
from stillbox.records.files import append_file, create_file, remove_tree
from stillbox.records.record_file import cache_folder
from stillbox.untrusted import named_path, open_untrusted, read_untrusted

DownloadProgress = Callable[[int, int], None]
"""Called with the numbers of bytes done and in all; 0: unknown."""

MOST_DOWNLOAD_BYTES = 2**32
"""Greatest size of a file without a published size."""
_SCHEMES = ("https",)
_SECONDS = 30
_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class NoNetworkError(UserError):
    """The address cannot be reached."""


def download(
    address: str, target: Path, *, size: int = 0, sha256: str = "", progress: DownloadProgress
) -> str:
    """Downloads a file; an earlier attempt that broke off is continued.

    Args:
        target: the file; beside it `.NAME.part` holds what has arrived.
        size: in bytes; 0: unknown.
        sha256: the checksum, or its first digits; empty: unknown.
        progress: called after each piece.

    Returns:
        The SHA-256.

    Raises:
        NoNetworkError: nothing answers.
        UserError: the address answers with an error, or the content is not what was expected.
    """
    part = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _receive(address, part, size, progress)
    except HTTPError as error:
        fix = "look for the file at its publisher's, or try again later"
        what = f"the server answers {error.code} {error.reason}"
        raise UserError(what, where=address, fix=fix) from error
    except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NoNetworkError(f"it cannot be reached: {reason}", where=address) from error
    digest = check_file(part, size=size, sha256=sha256, where=address, damaged=part.unlink)
    part.replace(target)
    sync_folder(target.parent)
    return digest


def check_file(
    path: Path,
    *,
    size: int = 0,
    sha256: str = "",
    where: str,
    damaged: Callable[[], None] = lambda: None,
) -> str:
    """Returns the SHA-256 of a file.

    Args:
        size: expected size in bytes; 0: any.
        sha256: expected checksum, or its first digits; empty: any.
        where: what the message names.
        damaged: called before an error.

    Raises:
        UserError: it has another size or checksum.
    """
    with open_untrusted(path, most=MOST_DOWNLOAD_BYTES) as file:
        found = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    wrong = ""
    if size and found != size:
        wrong = f"it has {found:,} bytes instead of {size:,}"
    elif not digest.startswith(sha256):
        wrong = f"its sha256 is {digest} instead of {sha256}"
    if wrong:
        damaged()
        fix = "fetch it again; if it stays so, the file is not the one that was published"
        raise UserError(f"{wrong}; nothing of it is used", where=where, fix=fix)
    return digest


class _SecureRedirects(HTTPRedirectHandler):
    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Request | None:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(address: str) -> None:
    if urlsplit(address).scheme not in _SCHEMES:
        what = "weights are downloaded over https alone"
        raise UserError(what, where=address, fix="fetch it by hand, if you trust it")


def _receive(address: str, part: Path, size: int, progress: DownloadProgress) -> None:
    _check_scheme(address)
    done = part.stat().st_size if part.exists() else 0
    if size and done == size:
        return
    request = Request(address, headers={"User-Agent": f"stillbox/{__version__}"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        answer = build_opener(_SecureRedirects).open(request, timeout=_SECONDS)
    except HTTPError as error:
        if error.code != 416:
            raise
        # The part is as long as the file, or longer: it is of another one.
        part.unlink()
        _receive(address, part, size, progress)
        return
    with answer, blamed(part):
        continued = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        resumes = answer.status == 206 and continued is not None and int(continued[1]) == done
        total = int(continued[2]) if resumes and continued else _length(answer.headers)
        if not resumes:
            done = 0
        most = size or total or MOST_DOWNLOAD_BYTES
        with append_file(part) if resumes else create_file(part) as file:
            while piece := answer.read(_CHUNK):
                done += len(piece)
                if done > most:
                    what = f"it sends more than {most:,} bytes"
                    raise UserError(what, where=address, fix="this is not the published file")
                file.write(piece)
                progress(done, size or total)
    if total and done < total:
        what = f"the connection ended after {done:,} of {total:,} bytes, which are kept"
        raise ConnectionError(what)


def _length(headers: HTTPMessage) -> int:
    text = headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else 0


_RECEIPT = "download.json"
_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_CONFIG = "pipeline.config"
# Limits on what is taken from an archive.
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
        UserError: it is the name of weights that are not downloaded, or one that no file can have.
    """
    path = named_path(path)
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
    return (
        f"`stillbox weights get {row.name}`; without a network fetch{_list_files(row)}\n  into "
        f"{weights_folder(row.name)}, then run the same command, which checks"
        f"{' and unpacks' if _is_archive(row.files[0]) else ''} it"
    )


def _list_files(row: KnownWeights) -> str:
    return "".join(f"\n    {file.describe()}" for file in row.files)


def get_weights(
    name: str, *, root: Path | None = None, progress: DownloadProgress, again: bool = False
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
        # Size and SHA-256, for files without a published checksum.
        replace_durably(folder / _RECEIPT, json.dumps(found, indent=1))
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
    row: KnownWeights, file: KnownFile, folder: Path, progress: DownloadProgress
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
    return (
        f"on a machine with a network fetch{_list_files(row)}\n  put it into {folder}, and run "
        "this command again: it needs no network then"
    )


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
                # Only the content is copied: no owner, mode or link.
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
