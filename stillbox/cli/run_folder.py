"""The model directory of `stillbox train` without --model-dir: a folder in `runs`.

`command.json` in the folder says what the command asked for. The same command goes on with the
newest run that it has begun and not finished; without one it begins a run in a new folder.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from stillbox.checkpoints.files import DirectoryLock, read_manifest, write_manifest
from stillbox.errors import UserError
from stillbox.printing import printable_line
from stillbox.records.files import write_whole
from stillbox.textformat.yaml_tree import MAX_BYTES
from stillbox.untrusted import read_untrusted

COMMAND = "command.json"
"""The file with what a command asked for, and whether its run is finished."""
_LOCK = ".command"
_RUNS = Path("runs")

Asked = Mapping[str, Any]
"""What a command asks for, by its arguments: values of JSON."""


class RunFolder:
    """A folder in `runs` that this process alone uses, until `release`."""

    def __init__(self, path: Path, asked: Asked) -> None:
        self.path, self._asked = path, asked
        self.release = DirectoryLock(path, _LOCK).release

    def note(self, *, finished: bool = False) -> None:
        """Writes what was asked for, and whether the run is finished."""
        content = {"asked": dict(self._asked), "finished": finished}
        write_whole(self.path / COMMAND, write_manifest(content), below=self.path)

    def remove_unused(self) -> None:
        """Removes the folder if the command has written nothing into it."""
        if {entry.name for entry in self.path.iterdir()} == {COMMAND, _LOCK}:
            shutil.rmtree(self.path)
            with suppress(OSError):  # other runs are there
                self.path.parent.rmdir()


@contextmanager
def run_folder(
    name: str, asked: Asked, is_same_data: Callable[[Path], bool], say: Callable[[str], None]
) -> Iterator[RunFolder]:
    """Yields the folder of an unfinished run of the same command, or else a new one.

    Args:
        name: of the folder; a number follows it if there is one.
        asked: what the command asks for.
        is_same_data: whether the run in a folder was begun with the data of the command.
        say: called with the folder, and why it is that one.
    """
    folder, is_new = _choose(name, asked, is_same_data, say)
    try:
        yield folder
    except UserError:
        if is_new:
            folder.remove_unused()
        raise
    finally:
        folder.release()


def digest_of(config: str) -> str:
    """Returns a checksum of a config file; empty if the config is a recipe, or refused later."""
    path = Path(config)
    with suppress(UserError):
        return hashlib.sha256(read_untrusted(path, most=MAX_BYTES)).hexdigest()
    return ""


def _choose(
    name: str, asked: Asked, is_same_data: Callable[[Path], bool], say: Callable[[str], None]
) -> tuple[RunFolder, bool]:
    """Returns the folder, and whether it is new."""
    free, there = _first_free(name), _numbered(name)
    reasons = []
    for path in there:
        reason = _reason_against(path, asked, is_same_data)
        if not reason:
            with suppress(UserError):  # another process was faster
                folder = RunFolder(path, asked)
                say(
                    f"going on with {path}, which this command has begun and not finished; "
                    f"--model-dir {free} begins anew"
                )
                return folder, False
        reasons.append(reason or _busy(path))
    folder = _new(name, asked)
    say(f"the model directory is {folder.path}" + (f": {reasons[0]}" if reasons else ""))
    return folder, True


def _numbered(name: str) -> list[Path]:
    """Returns the folders `runs/NAME`, `runs/NAME-2` and so on that exist, the newest first."""
    pattern = re.compile(rf"{re.escape(name)}(?:-([0-9]{{1,9}}))?")
    entries = _RUNS.iterdir() if _RUNS.is_dir() else ()
    matches = ((pattern.fullmatch(path.name), path) for path in entries)
    numbers = {path: int(match[1] or 1) for match, path in matches if match}
    return sorted(numbers, key=lambda path: -numbers[path])


def _first_free(name: str) -> Path:
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(path for path in map(_RUNS.joinpath, names) if not path.exists())


def _new(name: str, asked: Asked) -> RunFolder:
    while True:
        path = _first_free(name)
        with suppress(FileExistsError):  # another process was faster
            path.mkdir(parents=True)
            folder = RunFolder(path, asked)
            folder.note()
            return folder


def _reason_against(path: Path, asked: Asked, is_same_data: Callable[[Path], bool]) -> str:
    """Returns why the command does not go on with a folder; empty if it can."""
    begun = _read(path)
    if begun is None:
        return f"{path} is not of a command without --model-dir"
    before, finished = begun
    if before != asked:
        also = "" if finished else f"; `stillbox train --model-dir {path}` goes on with that run"
        return f"{path} is of another command ({_changes(before, asked)}){also}"
    if finished:
        return f"the run in {path} is finished"
    if not is_same_data(path):
        return f"the run in {path} was begun with other data"
    try:
        # `stillbox train --model-dir` may go on with it.
        DirectoryLock(path).release()
    except UserError:
        return _busy(path)
    return ""


def _busy(path: Path) -> str:
    return f"the run in {path} is going on"


def _read(path: Path) -> tuple[Asked, bool] | None:
    """Returns what the command of a folder asked for, and whether its run is finished."""
    try:
        content = read_manifest(path / COMMAND, problem="no command", fix="")
    except UserError:
        return None
    asked, finished = content.get("asked"), content.get("finished")
    return (asked, bool(finished)) if isinstance(asked, dict) else None


def _changes(before: Asked, now: Asked) -> str:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    changes = (f"{name} {_text(before.get(name))} -> {_text(now.get(name))}" for name in names)
    return printable_line(", ".join(changes))


def _text(value: object) -> str:
    if not value:
        return "not given"
    return value if isinstance(value, str) else json.dumps(value)
