"""A model directory in object storage: a folder here, of which every result is uploaded.

The objects have the names of the files. `checkpoint.json` is written last, and only if there is
none: a checkpoint with it is complete, and a checkpoint without it does not count. It is removed
first. The object with the highest number in `.writer/` names the one process that writes; it is
written again every few seconds.
"""

import json
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stillbox.checkpoints.checkpoint import BEST, MANIFEST
from stillbox.checkpoints.files import MAX_JSON_BYTES, unfinished_files
from stillbox.checkpoints.other_runs import refuse_other_objects, refuse_other_run
from stillbox.devices.announcing import announcing, say_aside
from stillbox.errors import UserError
from stillbox.experiment.yaml_config import CHECKPOINTS
from stillbox.object_storage import Entry, ObjectFolder, name_buckets, url_of
from stillbox.printing import printable_line, size_text
from stillbox.records.byte_source import cache_folder
from stillbox.records.files import make_folder, partial_folder
from stillbox.untrusted import read_untrusted

_LEASES = ".writer"
_RENEWED_SECONDS, _SILENT_SECONDS = 10.0, 45.0
# What no verb reads of a directory that it does not train into.
_UNREAD = ("tensorboard/", "plugins/", "evaluation/")
_STEP = re.compile("0|[1-9][0-9]{0,18}")

Say = Callable[[str], None]


class WriterLease:
    """The right of one process to write below a URL, held until `release`.

    A process that was killed is noticed after 45 s without a renewal. One that was merely stopped
    finds a higher number when it goes on, and writes nothing more.

    Raises:
        UserError: another process has it, or this account may not write there.
    """

    def __init__(self, objects: ObjectFolder, say: Say = say_aside) -> None:
        self._objects, self._say = objects, say
        self._holder = f"process {os.getpid()} on {socket.gethostname()}, {uuid.uuid4()}"
        self._number, self._renewals, self._released = 0, 0, threading.Event()
        while not self._number:
            newest = self._newest()
            self._wait_for_silence(newest)
            if objects.create(self._name(newest + 1), self._content()):
                self._number = newest + 1
        for number in self._numbers():
            if number < self._number:
                objects.remove(self._name(number))
        self._thread = threading.Thread(target=self._renew, name="writer-lease", daemon=True)
        self._thread.start()

    def check(self, objects: ObjectFolder | None = None) -> None:
        """Raises `UserError` if another process has taken over; asks with the patience given."""
        if self._newest(objects) > self._number:
            raise UserError(
                "another process has taken over this model directory; this one was silent for long",
                where=self._objects.url,
                fix="let only one of them run",
            )

    def release(self) -> None:
        """Lets another process write at once."""
        self._released.set()
        self._thread.join()
        with suppress(UserError):
            if self._newest() == self._number:
                self._objects.write(self._name(self._number), json.dumps({}).encode())

    def _newest(self, objects: ObjectFolder | None = None) -> int:
        return max(self._numbers(objects), default=0)

    def _numbers(self, objects: ObjectFolder | None = None) -> list[int]:
        names = [name.rpartition("/")[2] for name in (objects or self._objects).list(_LEASES)]
        return [int(name) for name in names if name.isdecimal()]

    def _wait_for_silence(self, number: int) -> None:
        content, began = self._held(number), time.monotonic()
        if not content:
            return
        holder = printable_line(str(_parsed(content).get("holder", "a process")))[:100]
        self._say(f"{self._objects.url}: waiting up to {_SILENT_SECONDS:.0f} s for {holder}")
        while time.monotonic() - began < _SILENT_SECONDS:
            time.sleep(_RENEWED_SECONDS / 4)
            now = self._held(number)
            if not now:
                return
            if now != content:
                problem = f"{holder} is writing into this directory"
                fix = "wait for it to end, or choose another model directory"
                raise UserError(problem, where=self._objects.url, fix=fix)

    def _held(self, number: int) -> bytes:
        """Returns the content of a lease; empty if it is released or not a lease."""
        try:
            content = self._objects.read(self._name(number), 0, 2**12)
        except FileNotFoundError:
            return b""
        return content if _parsed(content) else b""

    def _renew(self) -> None:
        while not self._released.wait(_RENEWED_SECONDS):
            self._renewals += 1
            # A storage that fails for a moment is written to again.
            with suppress(UserError):
                self._objects.write(self._name(self._number), self._content())

    def _content(self) -> bytes:
        return json.dumps({"holder": self._holder, "renewals": self._renewals}).encode()

    @staticmethod
    def _name(number: int) -> str:
        return f"{_LEASES}/{number:06d}"


def _patience() -> float:
    """Returns the seconds for which a storage may be away: `STILLBOX_STORAGE_SECONDS`, or 600.

    Raises:
        UserError: it is no number of seconds.
    """
    text = os.environ.get("STILLBOX_STORAGE_SECONDS", "600")
    if not re.fullmatch(r"[0-9]{1,6}", text):
        problem = f"{text[:40]!r} is no whole number of seconds"
        raise UserError(problem, where="STILLBOX_STORAGE_SECONDS", fix="600 are ten minutes")
    return float(text)


class RemoteDirectory:
    """The objects of a model directory, and the folder here that has their content.

    The model directory's code reads and writes `folder`, which is empty at first. It is renamed to
    `rescued` if results cannot be uploaded.
    """

    def __init__(self, url: str, folder: Path, rescued: Path) -> None:
        self.url, self.folder, self._rescued = url.rstrip("/"), folder, rescued
        self.failed = False
        """Whether the folder has results that the storage has not."""
        self._objects = ObjectFolder(url)
        self._lease: WriterLease | None = None
        self._sent: dict[str, tuple[int, int]] = {}

    def fetch(self, step: int | str, *, whole: bool = True) -> None:
        """Copies all files into the folder, but of the checkpoints only one and the best.

        `step` is a step, `latest` or `best`. `whole` includes curves, traces and reports, for
        training.

        Raises:
            UserError: there is no such step, the disk has no room, an object has no name of a file,
                or one was removed meanwhile.
        """
        there = self._objects.list()
        steps = _finished(there)
        wanted = {step} if isinstance(step, int) else {max(steps, default=-1)}
        if isinstance(step, int) and step not in steps:
            fix = f"finished checkpoints: {', '.join(map(str, sorted(steps))) or 'none'}"
            raise UserError(f"there is no checkpoint {step}", where=self.url, fix=fix)
        wanted |= {self._best(there)}
        passed_over = () if whole else _UNREAD
        chosen = {
            name: there[name]
            for name in there
            if _is_fetched(name, wanted & steps) and not name.startswith(passed_over)
        }
        size = sum(entry.size for entry in chosen.values())
        free = shutil.disk_usage(self.folder).free
        if size > free:
            problem = f"the model directory has {size_text(size)}, and {size_text(free)} are free"
            where = str(self.folder)
            raise UserError(problem, where=where, fix="let XDG_CACHE_HOME name a folder with room")
        done = 0
        with announcing(lambda: f"copying {self.url}: {size_text(done)} of {size_text(size)}"):
            for name, entry in chosen.items():
                self._fetch_file(name)
                done += entry.size

    def steps(self) -> tuple[int, ...]:
        """Returns the steps of the complete checkpoints in the storage, oldest first."""
        return tuple(sorted(_finished(self._objects.list(CHECKPOINTS))))

    def start_writing(self) -> None:
        """Becomes the one writer, and removes checkpoints that were left unfinished.

        Raises:
            UserError: another process writes, this account may not, or another program's run is
                there.
        """
        refuse_other_objects(self.url, self._objects.list())
        # Renewals ask without patience: the end of a run waits for one that is under way.
        self._lease = WriterLease(ObjectFolder(self.url))
        self._objects.patience = _patience()
        there = self._objects.list(CHECKPOINTS)
        finished = _finished(there)
        for name in there:
            if (step := _step_of(name)) is not None and step not in finished:
                self._objects.remove(name)

    def publish_checkpoint(self, step: int) -> None:
        """Uploads a finished checkpoint of the folder, and the other files that have changed.

        Raises:
            UserError: the storage fails, or another process has taken over.
        """
        self.publish_files()
        folder = self.folder / CHECKPOINTS / str(step)
        names = {_object_name(path, self.folder): path for path in sorted(folder.iterdir())}
        manifest = f"{CHECKPOINTS}/{step}/{MANIFEST}"
        content = read_untrusted(names.pop(manifest), most=MAX_JSON_BYTES, inside=folder)
        refusal = UserError(f"the checkpoint of step {step} is there already", where=self.url)
        with self._keeping_results():
            if self._objects.find(manifest) is not None:
                raise refusal
            for name, path in names.items():
                self._upload(path, name)
            self._check()
            if not self._objects.create(manifest, content):
                raise refusal

    def publish_files(self) -> None:
        """Uploads the files that have changed, without the checkpoints; raises as above."""
        with self._keeping_results():
            self._check()
            for path in sorted(self.folder.rglob("*")):
                name = _object_name(path, self.folder)
                if not _is_result(name) or path.is_symlink() or not path.is_file():
                    continue
                if self._sent.get(name) != (now := _state(path)):
                    self._upload(path, name)
                    self._sent[name] = now

    def _upload(self, path: Path, name: str) -> None:
        # A process that was suspended must replace nothing that its successor has written.
        self._check()
        self._objects.upload(path, name)

    def hurry(self) -> None:
        """Waits no longer for a storage that is away."""
        self._objects.patience = 0.0

    @contextmanager
    def _keeping_results(self) -> Iterator[None]:
        """Says where the results are that cannot be uploaded."""
        try:
            yield
        except UserError as error:
            self.failed = True
            self.hurry()
            kept = f"all results are in {self._rescued}, from which training can go on too"
            fix = f"{error.fix}; {kept}" if error.fix else kept
            raise UserError(error.what, where=error.where, fix=fix) from error

    def remove_checkpoint(self, step: int) -> None:
        """Removes a checkpoint; it stops to count with the first object."""
        folder = f"{CHECKPOINTS}/{step}"
        self._objects.remove(f"{folder}/{MANIFEST}")
        for name in self._objects.list(folder):
            self._objects.remove(name)

    def end(self) -> None:
        """Uploads what is left, if this process writes; raises as `publish_files`."""
        if self._lease is not None:
            self.publish_files()

    def stop_writing(self) -> None:
        """Lets another process write."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _check(self) -> None:
        if self._lease is not None:
            self._lease.check(self._objects)

    def _fetch_file(self, name: str) -> None:
        path = self.folder / name
        make_folder(path.parent, below=self.folder)
        try:
            # A part of a file, as after Ctrl-C, would be uploaded in place of the object.
            with unfinished_files(path) as (unfinished,):
                self._objects.download(name, unfinished)
                unfinished.replace(path)
        except FileNotFoundError as error:
            problem = f"{name} was removed while it was copied"
            raise UserError(problem, where=self.url, fix="run this again") from error
        self._sent[name] = _state(path)

    def _best(self, there: Mapping[str, Entry]) -> int:
        """Returns the step that is marked as the best; -1 if none is, or the file is damaged."""
        if BEST not in there or there[BEST].size > 2**16:
            return -1
        try:
            content = self._objects.read(BEST)
        except FileNotFoundError:
            return -1
        step = _parsed(content).get("step")
        return step if isinstance(step, int) else -1


def _parsed(content: bytes) -> dict[str, Any]:
    """Returns an object of JSON; empty for anything else."""
    with suppress(ValueError, RecursionError):
        value = json.loads(content)
        return value if isinstance(value, dict) else {}
    return {}


def finished_steps(folder: Path) -> tuple[int, ...]:
    """Returns the steps of the finished checkpoints of a model directory, oldest first."""
    checkpoints = folder / CHECKPOINTS
    names = [entry.name for entry in checkpoints.iterdir()] if checkpoints.is_dir() else []
    return tuple(sorted(int(name) for name in names if _STEP.fullmatch(name)))


def _finished(there: Mapping[str, Entry]) -> set[int]:
    """Returns the steps of the checkpoints that are complete."""
    steps = (_step_of(name) for name in there if name.endswith(f"/{MANIFEST}"))
    return {step for step in steps if step is not None}


def _step_of(name: str) -> int | None:
    parts = name.split("/")
    inside = len(parts) == 3 and parts[0] == CHECKPOINTS and _STEP.fullmatch(parts[1])
    return int(parts[1]) if inside else None


def _is_result(name: str) -> bool:
    """Whether a file is uploaded whenever it has changed."""
    parts = PurePosixPath(name).parts
    return parts[0] != CHECKPOINTS and not any(part.startswith(".") for part in parts)


def _is_fetched(name: str, steps: set[int]) -> bool:
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\0" in name:
        raise UserError(f"{name!r} is not the name of a file", where="the model directory")
    if any(part.startswith(".") for part in parts):
        return False
    return _step_of(name) in steps if parts[0] == CHECKPOINTS else True


def _object_name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class ModelPlace:
    """Where a model directory is: a folder, or a folder and what it is a copy of."""

    folder: Path
    remote: RemoteDirectory | None = None

    def __str__(self) -> str:
        return self.remote.url if self.remote else str(self.folder)

    def steps(self) -> tuple[int, ...]:
        """Returns the steps of the finished checkpoints, oldest first."""
        return self.remote.steps() if self.remote else finished_steps(self.folder)

    def newest_step(self) -> int:
        """Returns the step of the newest checkpoint; 0 without one."""
        return max(self.steps(), default=0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Names the URL in errors about files of its copy, which is removed at the end."""
        try:
            yield
        except UserError as error:
            copy = str(self.folder)
            texts = (error.what, error.where, error.fix)
            if self.remote is None or not any(copy in (text or "") for text in texts):
                raise
            problem, where, fix = ((text or "").replace(copy, self.remote.url) for text in texts)
            raise UserError(problem, where=where, fix=fix) from error


@contextmanager
def model_place(
    path: "str | Path | ModelPlace", *, step: int | str = "best", writes: bool = False
) -> Iterator[ModelPlace]:
    """Yields the folder of a model directory; for a URL a copy, which is removed at the end.

    A place is yielded as it is. `step` is the checkpoint that is needed of a URL, as in
    `RemoteDirectory.fetch`; with `writes` this process becomes the one writer.

    Raises:
        UserError: see `ObjectFolder` and `WriterLease`; or, with `writes`, `refuse_other_run`.
    """
    url = None if isinstance(path, ModelPlace) else url_of(path)
    if url is None:
        if writes and not isinstance(path, ModelPlace):
            refuse_other_run(Path(path))
        yield path if isinstance(path, ModelPlace) else ModelPlace(Path(path))
        return
    name_buckets(url)
    rescued = cache_folder() / "model_directories" / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    with partial_folder(rescued) as folder:
        remote = RemoteDirectory(url, folder, rescued)
        try:
            with announcing(lambda: f"waiting for {url}"):
                if writes:
                    remote.start_writing()
            remote.fetch(step, whole=writes)
            place = ModelPlace(folder, remote)
            with nullcontext() if writes else place.reading():
                yield place
            remote.end()
        except BaseException as error:
            # What was measured up to the error is worth keeping; the error itself is reported.
            remote.hurry()
            try:
                remote.end()
            except UserError as unsent:
                if str(rescued) not in str(error):
                    say_aside(f"{unsent.where}: {unsent.what}; {unsent.fix}")
            raise
        finally:
            remote.stop_writing()
            if remote.failed:
                folder.rename(rescued)
