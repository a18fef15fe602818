"""The model directory: everything that evaluation, prediction, export and serving need of a model.

    DIR/experiment.yaml, label_map.pbtxt, versions.json   the model's configuration
    DIR/best.json                                         the step that scored best
    DIR/checkpoints/<step>/                               see `checkpoint.py`

A step's folder gets its name in one rename, after the disk has all of its content: a folder
`<step>` is complete. Other folders there are leftovers, which the next training run removes.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stillbox.checkpoints.checkpoint import (
    BEST,
    EXPERIMENT,
    LABEL_MAP,
    MANIFEST,
    VERSIONS,
    Arrays,
    Checkpoint,
    StoredExperiment,
    flatten_section,
    write_checkpoint,
)
from stillbox.checkpoints.files import (
    DELETED,
    MAX_JSON_BYTES,
    DirectoryLock,
    list_folder,
    read_manifest,
    remove_folder,
    replace_durably,
    sync_folder,
    write_manifest,
)
from stillbox.checkpoints.remote_directory import RemoteDirectory, finished_steps
from stillbox.devices.announcing import announcing
from stillbox.errors import UserError, nearest
from stillbox.experiment.yaml_config import CHECKPOINTS
from stillbox.object_storage import url_of
from stillbox.printing import size_text
from stillbox.records.files import lack_of_room, make_folder, remove_tree
from stillbox.records.label_map import LabelMap
from stillbox.references import Parameter
from stillbox.untrusted import read_untrusted

OF_TRAINING = (CHECKPOINTS, BEST, MANIFEST)
"""Names that a model directory or a checkpoint has, and no other folder of stillbox."""
_WITHOUT_BEST = "delete it: the newest checkpoint counts then"
_UNFINISHED = ".unfinished-"
_HEADER_BYTES, _BLOCK_BYTES = 400, 4096

CheckpointChoice = int | Literal["best", "latest"]


class Best(NamedTuple):
    """The checkpoint that scored highest."""

    step: int
    metric: str
    value: float


class ModelDirectory(StoredExperiment):
    """A model with its checkpoints, of which the newest `keep` and the best stay; 0: all."""

    def __init__(self, path: str | Path, *, keep: int = 3) -> None:
        super().__init__(Path(path))
        self.path, self._keep = self.folder, keep
        self._checkpoints = self.path / CHECKPOINTS
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._uploader: ThreadPoolExecutor | None = None
        self._uploads: list[Future[None]] = []
        self._lock: DirectoryLock | None = None
        self._remote: RemoteDirectory | None = None
        self._writes = True

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        experiment: str,
        label_map: str,
        versions: Mapping[str, str],
        keep: int = 3,
        writes: bool = True,
        lock: DirectoryLock | None = None,
        remote: RemoteDirectory | None = None,
    ) -> "ModelDirectory":
        """Creates the directory, or continues one, for the one process that writes into it.

        Args:
            experiment: as YAML.
            label_map: as text; may be empty.
            versions: of programs that the numbers may depend on.
            writes: False for the other processes of a job; their calls that write do nothing.
            lock: of the directory, if it is held already; `close` releases it.
            remote: gets every result too.

        Raises:
            UserError: a file has that name, or another process writes into the directory.
        """
        directory = cls(path, keep=keep)
        directory._writes, directory._lock = writes, lock
        directory._remote = remote if writes else None
        # The experiment comes last: with it, all are there.
        files = {VERSIONS: json.dumps(dict(versions), indent=1), LABEL_MAP: label_map}
        files[EXPERIMENT] = experiment
        with _waiting(directory.path):
            if directory.path.exists() and not directory.path.is_dir():
                raise UserError("the model directory is a file", where=str(path))
            if writes:
                directory._begin(files)
        return directory

    def _begin(self, files: Mapping[str, str]) -> None:
        others = () if is_model_directory(self.path) else files
        for name in others:
            self._refuse_to_replace(name, files[name])
        make_folder(self._checkpoints, below=self.path)
        self._lock = self._lock or DirectoryLock(self.path)
        for leftover in self._checkpoints.iterdir():
            if leftover.name.startswith((_UNFINISHED, DELETED)):
                remove_tree(leftover)
        for leftover in self.path.glob(".*.unfinished"):
            remove_tree(leftover)
        for name, content in files.items():
            # A label map of the same classes may be the user's, with comments.
            if name != LABEL_MAP or not self._has_classes(content):
                replace_durably(self.path / name, content)

    def _refuse_to_replace(self, name: str, content: str) -> None:
        path = self.path / name
        same = self._has_classes if name == LABEL_MAP else partial(_holds, path)
        if os.path.lexists(path) and not same(content):
            problem = "this file would be replaced, and no run wrote it"
            fix = f"move it away, or take a new {Parameter('model_dir')}"
            raise UserError(problem, where=str(path), fix=fix)

    def _has_classes(self, label_map: str) -> bool:
        """Whether the folder's label map has the classes of a text."""
        with suppress(UserError, OSError):
            there = LabelMap.from_text(self.label_map)
            return there == LabelMap.from_text(label_map)
        return False

    @classmethod
    def open(cls, path: str | Path) -> "ModelDirectory":
        """Opens a directory for reading, also while training writes into it.

        Raises:
            UserError: there is no such folder, it is not a model directory, or it is a URL.
        """
        folder = Path(path)
        if url := url_of(folder):
            problem = "the model directory has to be a folder of this machine here"
            fix = "copy it first; train, evaluate, predict and export take the URL"
            raise UserError(problem, where=url, fix=fix)
        if not folder.is_dir():
            siblings = [entry.name for entry in folder.parent.glob("*") if entry.is_dir()]
            fix = nearest(folder.name, siblings)
            raise UserError("there is no such model directory", where=str(path), fix=fix)
        if not is_model_directory(folder):
            problem = f"this is not a model directory: {EXPERIMENT} or {CHECKPOINTS}/ is missing"
            fix = f"give the folder that training wrote; this one holds {list_folder(folder)}"
            raise UserError(problem, where=str(path), fix=fix)
        return cls(folder)

    def steps(self) -> tuple[int, ...]:
        """Returns the steps of all finished checkpoints, oldest first."""
        return finished_steps(self.path)

    def latest_step(self) -> int | None:
        """Returns the newest finished checkpoint's step."""
        return max(self.steps(), default=None)

    def best(self) -> Best | None:
        """Returns the best checkpoint, if one was marked and still exists."""
        path = self.path / BEST
        # A broken link is not a missing file.
        if not (path.exists() or path.is_symlink()):
            return None
        content = read_manifest(path, problem="the best checkpoint is unknown", fix=_WITHOUT_BEST)
        try:
            best = _checked(Best(**content))
        except (TypeError, OverflowError) as error:
            raise UserError("the file is damaged", where=str(path), fix=_WITHOUT_BEST) from error
        return best if best.step in self.steps() else None

    def checkpoint(self, which: CheckpointChoice = "latest") -> Checkpoint:
        """Opens the checkpoint of a step, the newest, or the best, else the newest too.

        Raises:
            UserError: there is no such checkpoint.
        """
        best = self.best() if which == "best" else None
        step = which if isinstance(which, int) else best.step if best else self.latest_step()
        if step not in self.steps():
            fix = f"finished checkpoints: {self._list_steps()}"
            raise UserError(f"there is no checkpoint {which!r}", where=str(self.path), fix=fix)
        chosen = Checkpoint(self._checkpoints / str(step))
        if chosen.step != step:
            problem = f"the folder holds the checkpoint of step {chosen.step}"
            raise UserError(
                problem, where=str(chosen.folder), fix="give the folder its own name again"
            )
        return chosen

    def save(
        self,
        step: int,
        arrays: Mapping[str, Any],
        metadata: Mapping[str, Any],
        *,
        wait: bool = True,
    ) -> None:
        """Writes a checkpoint; then removes the oldest that are no longer kept.

        `arrays` has a pytree for each section of the training state; `params`, `stats` and `ema`
        are flat dictionaries keyed by parameter path. `metadata` is JSON. With `wait` the disk has
        the checkpoint on return; otherwise a thread writes it.

        Raises:
            FileExistsError: this step has a checkpoint; a finished one never changes.
            UserError: this checkpoint, or the one before, could not be written.
        """
        if not self._writes:
            return
        self.wait()
        target = self._checkpoints / str(step)
        with _waiting(self.path):
            there = target.exists()
        if there:
            raise FileExistsError(f"{target} exists")
        # Copied to the host now: the next training step may donate the buffers.
        sections = {name: flatten_section(tree) for name, tree in arrays.items()}
        if wait:
            self._write(step, sections, metadata)
            self._end_uploads(wait=True)
            return
        self._writer = self._writer or ThreadPoolExecutor(1, "checkpoint")
        self._pending = self._writer.submit(self._write, step, sections, metadata)

    def wait(self) -> None:
        """Waits for a checkpoint that is being written here, not for its upload; raises as `save`,
        also if an upload has failed."""
        self._end_uploads(wait=False)
        pending, self._pending = self._pending, None
        if pending:
            with announcing(lambda: f"writing a checkpoint into {self.path}"):
                pending.result()

    def close(self) -> None:
        """Waits as `wait` and for all uploads, then ends the threads and releases the lock."""
        try:
            self.wait()
            self._end_uploads(wait=True)
        except BaseException:
            if self._remote:
                self._remote.hurry()
            raise
        finally:
            if self._uploader:
                self._uploader.shutdown(cancel_futures=True)
                self._uploader = None
            if self._writer:
                self._writer.shutdown()
                self._writer = None
            if self._lock:
                self._lock.release()
                self._lock = None

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Marks a finished checkpoint as the best; it is kept from then on."""
        if not self._writes:
            return
        self.wait()
        with _waiting(self.path):
            best = Best(self.checkpoint(step).step, metric, value)
            replace_durably(self.path / BEST, write_manifest(best._asdict()).decode())
        if self._remote:
            self._upload(step, self._remote.publish_files)
        else:
            self._prune(step)

    def _upload(self, step: int, send: Callable[[], None]) -> None:
        """Sends results on a thread, in their order, and removes what is no longer kept."""

        def upload() -> None:
            send()
            self._prune(step)

        self._uploader = self._uploader or ThreadPoolExecutor(1, "upload")
        self._uploads.append(self._uploader.submit(upload))

    def _end_uploads(self, *, wait: bool) -> None:
        """Raises the error of an upload that has ended; all have with `wait`."""
        with announcing(lambda: f"uploading {self.path}") if wait else nullcontext():
            while self._uploads and (wait or self._uploads[0].done()):
                self._uploads.pop(0).result()

    def restore(self, step: int, like: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the sections that `like` names; see `Checkpoint.restore`."""
        return self.checkpoint(step).restore(like)

    def read_metadata(self, step: int) -> dict[str, Any]:
        """Returns what was stored beside the arrays of a step."""
        return self.checkpoint(step).metadata

    def _write(
        self, step: int, sections: Mapping[str, Arrays], metadata: Mapping[str, Any]
    ) -> None:
        unfinished = self._checkpoints / f"{_UNFINISHED}{step}"
        copies = [self.path / name for name in (EXPERIMENT, LABEL_MAP, VERSIONS)]
        try:
            unfinished.mkdir()
            write_checkpoint(unfinished, step, sections, metadata, copies)
            unfinished.rename(self._checkpoints / str(step))
            sync_folder(self._checkpoints)
        except OSError as error:
            # Beside its numbers, each array has a header, and each file a part of a block.
            arrays = [array for section in sections.values() for array in section.values()]
            files = len(sections) + len(copies) + 1
            size = sum(array.nbytes + _HEADER_BYTES for array in arrays) + files * _BLOCK_BYTES
            needs = f"it needs {size_text(size)}"
            room = lack_of_room(self._checkpoints, error, needs, size)
            shutil.rmtree(unfinished, ignore_errors=True)
            raise UserError(
                f"the checkpoint of step {step} cannot be written: {error.strerror or error}{room}",
                where=str(self._checkpoints),
                fix="make room on the disk and start again; finished checkpoints: "
                + self._list_steps(),
            ) from error
        if self._remote:
            self._upload(step, partial(self._remote.publish_checkpoint, step))
        else:
            self._prune(step)

    def _list_steps(self) -> str:
        return ", ".join(map(str, self.steps())) or "none"

    def _prune(self, newest: int) -> None:
        """Removes old checkpoints; those after `newest` are not in the storage yet."""
        best, local = self.best(), [step for step in self.steps() if step <= newest]
        # The copy of a directory in a bucket lacks most of the older checkpoints.
        everywhere = {*local, *(self._remote.steps() if self._remote else ())}
        for step in sorted(everywhere)[: -self._keep]:
            if best and step == best.step:
                continue
            if step in local:
                remove_folder(self._checkpoints / str(step))
            if self._remote:
                self._remote.remove_checkpoint(step)


def _waiting(path: Path) -> AbstractContextManager[None]:
    """Reports that a disk does not answer: a dead mount blocks every call."""
    return announcing(lambda: f"waiting for the model directory {path}")


def _holds(path: Path, content: str) -> bool:
    with suppress(UserError):
        return read_untrusted(path, most=MAX_JSON_BYTES) == content.encode()
    return False


def _checked(best: Best) -> Best:
    step, metric, value = best
    if type(step) is not int or not isinstance(metric, str) or type(value) not in (int, float):
        raise TypeError("a step, the name of a metric and its value are expected")
    return best._replace(value=float(value))


@contextmanager
def locked_directory(path: Path, *, writes: bool = True) -> Iterator[DirectoryLock | None]:
    """Locks a model directory before it is read, so that no writer changes it meanwhile.

    Yields None, and locks nothing, if there is no model directory yet, or if this process `writes`
    nothing.

    Raises:
        UserError: another process writes into it.
    """
    there = writes and is_model_directory(path)
    with _waiting(path):
        lock = DirectoryLock(path) if there else None
    try:
        yield lock
    finally:
        if lock:
            lock.release()


def is_model_directory(path: Path) -> bool:
    """Whether training wrote a folder."""
    with _waiting(path):
        return (path / EXPERIMENT).is_file() and (path / CHECKPOINTS).is_dir()
