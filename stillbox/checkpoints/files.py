"""Durable and atomic writing of files, the lock of a folder, and checksums of its files.

After a crash a file is complete or absent. A folder's manifest stores the sizes and SHA-256 of
its files, which are compared on reading. They show what was damaged, mixed up or edited. They are
not a signature: whoever can change a file can change the manifest too.
"""

import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from stillbox.errors import UserError
from stillbox.printing import printable_line
from stillbox.records.file_kinds import other_content
from stillbox.records.files import (
    create_file,
    files_below,
    open_in_place,
    remove_tree,
    replace_file,
)
from stillbox.system import open_folder, try_lock
from stillbox.untrusted import open_untrusted, read_untrusted

DELETED = ".deleted-"
"""Prefix of the name of a folder that is being removed."""
MAX_WEIGHTS_BYTES = 2**33
"""Greatest size of a file of weights, and of its arrays: a billion parameters take half of it."""
MAX_JSON_BYTES = 2**24
"""Greatest size of a manifest or another JSON file; real ones have some kilobytes."""


def refuse_other_content(path: Path) -> None:
    """Refuses what lies in place of a binary file, such as a pointer of Git LFS or a web page.

    Raises:
        UserError: it does, or the file cannot be read.
    """
    with open_untrusted(path, most=None) as file:
        kind, _, fix = other_content(file.read(_HEAD_BYTES)).partition(": ")
    # Weights of several kinds are archives themselves, and readers know what may be empty.
    if fix and "archive" not in kind:
        raise UserError(f"this is {kind}, and not the file itself", where=str(path), fix=fix)


_HEAD_BYTES = 512
_OF_PYTHON = (TypeError, AttributeError, KeyError, IndexError, RecursionError, AssertionError)


def damage_of(error: Exception) -> str:
    """Returns the reason why a file cannot be read, in place of what Python says of its code."""
    if isinstance(error, _OF_PYTHON) or not str(error):
        return "its content has another form"
    return str(error).splitlines()[0]


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Adds the file's name to an `OSError` that has none, such as the error of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file and waits until the disk has it. Its name appears before its content."""
    with blamed(path), create_file(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def unfinished_files(*targets: Path) -> Iterator[list[Path]]:
    """Yields the paths of temporary files beside others; after an error none of them is left."""
    unfinished = [path.with_name(f".{path.name}.unfinished") for path in targets]
    try:
        with blamed(targets[0]):
            yield unfinished
    except BaseException:
        for path in unfinished:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a temporary file, which then replaces `path` in one step."""
    with unfinished_files(path) as (unfinished,):
        yield unfinished
        replace_file(unfinished, path)
    sync_folder(path.parent)


def replace_durably(path: Path, text: str) -> None:
    """Replaces a text file. Readers find the old content or the new one, never a part."""
    with replacing(path) as unfinished:
        write_durably(unfinished, text.encode())


def sync_folder(path: Path) -> None:
    """Waits until the disk has the names in a folder."""
    descriptor = open_folder(path)
    if descriptor is None:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Removes a folder; its name disappears before the first of its files."""
    deleted = path.with_name(f"{DELETED}{path.name}")
    path.rename(deleted)
    remove_tree(deleted)


def list_folder(path: Path, limit: int = 12) -> str:
    """Returns the names in a folder, for a message."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    rest = len(names) - limit
    shown = printable_line(", ".join(names[:limit])) or "nothing"
    return shown + (f" and {rest} more" if rest > 0 else "")


class DirectoryLock:
    """An exclusive lock of a folder, held until `release` or the end of the process.

    The operating system releases it however the process ends.

    Args:
        directory: the folder.
        name: of the file in it that is locked.

    Raises:
        UserError: another process holds it, or the name of its file is a link.
    """

    def __init__(self, directory: Path, name: str = ".lock") -> None:
        self._file = open_in_place(directory / name, os.O_RDWR)
        # Also released by garbage collection: a notebook may train twice in one process.
        self.release = weakref.finalize(self, os.close, self._file)
        before = os.read(self._file, 100).decode(errors="replace")
        locked = try_lock(self._file)
        if locked is False:
            self.release()
            problem = f"{before or 'another process'} is writing into this directory"
            fix = "wait for it to end, or choose another model directory"
            raise UserError(problem, where=str(directory), fix=fix)
        if locked is None:
            return
        # On a full disk the file is locked without the number.
        with suppress(OSError):
            # A file of this name may be somebody else's.
            if not before or before.startswith("process "):
                os.ftruncate(self._file, 0)
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, f"process {os.getpid()}".encode())


FileState = Literal["ok", "changed", "missing", "unknown"]
"""`unknown`: nothing says what the file was."""

_OWN = "sha256"
_DIGITS = set("0123456789abcdef")
_MOVE = "move the folder away, or give another one"
_ELSEWHERE = "copy the folder again from its source; `stillbox doctor {}` checks all of it"


@dataclass(frozen=True)
class Checksums:
    """What the files of a folder were when they were written."""

    folder: Path
    files: Mapping[str, tuple[int, str]] | None
    """Bytes and SHA-256 by path below the folder; None: an older version wrote no checksums."""
    manifest: str
    """Name of the file that they are from."""

    @classmethod
    def of_folder(cls, folder: Path, manifest: str) -> "Checksums":
        """Returns the checksums of all files below a folder but its manifest."""
        names = [name for name in files_below(folder) if name != manifest]
        return cls(folder, {name: _measure(folder / name) for name in names}, manifest)

    @classmethod
    def parse(cls, content: object, folder: Path, manifest: str) -> "Checksums":
        """Reads what `to_json` returned.

        Raises:
            UserError: it is not a list of files below the folder with their checksums.
        """
        if content is None:
            return cls(folder, None, manifest)
        if not isinstance(content, dict) or not all(map(_is_entry, content.items())):
            problem = "the list of files and checksums is damaged"
            raise UserError(problem, where=str(folder / manifest), fix=_ELSEWHERE.format(folder))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in content.items()}
        return cls(folder, files, manifest)

    @classmethod
    def written(cls, folder: Path, manifest: str) -> set[str]:
        """Returns the files of a folder that were written with its manifest; none without one.

        Raises:
            UserError: the manifest is damaged, or of an older version that listed no files.
        """
        if not (folder / manifest).is_file():
            return set()
        problem = "the folder is not replaced"
        content = read_manifest(folder / manifest, problem=problem, fix=_MOVE)
        files = cls.parse(content.get("checksums"), folder, manifest).files
        if files is None:
            problem = f"{problem}: {manifest} does not say which files were written with it"
            raise UserError(problem, where=str(folder), fix=_MOVE)
        return {manifest, *files}

    def with_files(self, *names: str) -> "Checksums":
        """Returns the checksums with more files, or with all files below folders."""
        below = tuple(f"{name}/" for name in names)
        added = [
            name for name in files_below(self.folder) if name in names or name.startswith(below)
        ]
        more = {name: _measure(self.folder / name) for name in added}
        return replace(self, files={**(self.files or {}), **more})

    def to_json(self) -> dict[str, dict[str, int | str]]:
        """Returns a part of a manifest."""
        files = sorted((self.files or {}).items())
        return {name: {"bytes": size, "sha256": digest} for name, (size, digest) in files}

    def compare(self, name: str, file: BufferedReader) -> None:
        """Compares the content of an open file, and leaves the file at its beginning.

        Raises:
            UserError: it is not the file that was written.
        """
        if self.files is None:
            return
        size = os.fstat(file.fileno()).st_size
        known_size, known_digest = self.files.get(name, (-1, ""))
        # A huge file is not read if its size already differs.
        if size != known_size or _digest(file) != known_digest:
            refuse_other_content(self.folder / name)
            problem = f"the file is damaged, or not the one that was written with {self.manifest}"
            raise UserError(
                problem, where=str(self.folder / name), fix=_ELSEWHERE.format(self.folder)
            )
        file.seek(0)

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compares files of the folder, by default all of which the checksums are known.

        Raises:
            UserError: as `compare`, or one is missing or no regular file of the folder.
        """
        for name in (self.files or {}) if names is None else names:
            where, fix = str(self.folder / self.manifest), _ELSEWHERE.format(self.folder)
            with open_untrusted(
                self.folder / name, most=None, where=where, fix=fix, inside=self.folder
            ) as file:
                self.compare(name, file)

    def states(self) -> Iterator[tuple[str, FileState]]:
        """Yields the state of every file that is there or should be, by name."""
        known = self.files or {}
        there = [name for name in files_below(self.folder) if name != self.manifest]
        for name in sorted({*known, *there}):
            if name not in known:
                yield name, "unknown"
                continue
            try:
                self.verify([name])
                yield name, "ok"
            except UserError:
                # A broken link counts as missing, a link out of the folder as changed.
                yield name, "changed" if (self.folder / name).exists() else "missing"


def write_manifest(content: Mapping[str, Any]) -> bytes:
    """Returns a manifest as JSON, with a checksum of itself."""
    return json.dumps({**content, _OWN: _own_checksum(content)}, indent=1).encode()


def read_manifest(path: Path, *, problem: str, fix: str) -> dict[str, Any]:
    """Reads what `write_manifest` returned; older manifests have no checksum of themselves.

    `problem` is the sentence for a folder without a readable manifest, `fix` its remedy.

    Raises:
        UserError: the file is missing, not a regular file, not a JSON object, or was changed.
    """
    folder = path.parent
    try:
        content = json.loads(read_untrusted(path, most=MAX_JSON_BYTES, inside=folder))
        stated = content.pop(_OWN, None)
        changed = stated is not None and stated != _own_checksum(content)
    # Too deep nesting, numbers of thousands of digits, and JSON that is not an object.
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        reason = error.what if isinstance(error, UserError) else f"{path.name} is damaged"
        raise UserError(f"{problem}: {reason}", where=str(folder), fix=fix) from error
    if changed:
        reason = "the file was changed after it was written"
        raise UserError(reason, where=str(path), fix=fix)
    return dict(content)


def _own_checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _measure(path: Path) -> tuple[int, str]:
    with open_untrusted(path, most=None) as file:
        return os.fstat(file.fileno()).st_size, _digest(file)


def _digest(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _is_entry(item: tuple[str, Any]) -> bool:
    name, entry = item
    path = PurePosixPath(name)
    return (
        bool(path.parts)
        and not path.is_absolute()
        and not {"..", "\0"} & {*path.parts, *name}
        and isinstance(entry, dict)
        and type(entry.get("bytes")) is int
        and isinstance(entry.get("sha256"), str)
        and len(entry["sha256"]) == 64
        and _DIGITS.issuperset(entry["sha256"])
    )
