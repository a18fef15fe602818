"""Refuses to train where another program has written: a run replaces no file but its own.

A folder is taken if it holds weights, or binary files of an unknown kind, or a file of a name that
a run writes. Texts, images, records, archives and event files are in nobody's way.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from stillbox.checkpoints.checkpoint import BEST, EXPERIMENT, MANIFEST, VERSIONS
from stillbox.devices.announcing import announcing
from stillbox.errors import UserError
from stillbox.experiment.yaml_config import CHECKPOINTS
from stillbox.records.file_kinds import ARCHIVES, OTHER_IMAGES
from stillbox.records.image_files import IMAGE_SUFFIXES
from stillbox.references import Parameter, Setting
from stillbox.untrusted import open_untrusted, read_untrusted

# Known to other packages: the history of a run, and the runs of its loggers.
_HISTORIES = ("metrics.jsonl", "tracking.json")
_PARTS = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
_READABLE = (".npz", ".safetensors", ".pth", ".pt", ".pb", ".tflite", ".stillbox")
_WEIGHTS = (
    *(*_READABLE, ".ckpt", ".index", ".h5", ".hdf5", ".keras", ".weights", ".onnx", ".bin"),
    *(".pkl", ".pickle", ".msgpack", ".pdparams", ".pdopt", ".caffemodel", ".params", ".npy"),
)
_STATE = "checkpoint"
# The heads are loaded too: a run of another program has the classes of its config.
_WHOLE = (
    Setting("train.fine_tune.scope", "detection"),
    Setting("train.fine_tune.load_heads", True),
)
_HARMLESS = (*IMAGE_SUFFIXES, *OTHER_IMAGES, *ARCHIVES, ".pyc", ".parquet", ".xlsx", ".docx")
_RECORDS = re.compile(r"\.(tf)?records?(-\d+-of-\d+)?$|[.-]tfrecords?-|\.tfevents\.")
_STATE_BYTES, _HEAD_BYTES, _MOST_FILES = 2**20, 4096, 20_000
# Files of one save are written within so many seconds.
_ONE_SAVE = 10


def refuse_other_run(folder: Path) -> None:
    """Refuses a folder that holds another program's run.

    Raises:
        UserError: it does; the message names the newest checkpoint, and how to start from it.
    """
    with announcing(lambda: f"waiting for the model directory {folder}"):
        ours = (folder / EXPERIMENT).is_file() and (folder / CHECKPOINTS).is_dir()
        if not folder.is_dir() or (ours and (folder / VERSIONS).is_file()):
            return
        foreign = {name: _written_at(folder / name) for name in _foreign(folder)}
    written = () if ours else (EXPERIMENT, BEST, *_HISTORIES)
    taken = [name for name in written if os.path.lexists(folder / name)]
    if foreign:
        raise _refusal(str(folder), _newest(foreign, _read_state(folder)), weights_in(foreign))
    if taken:
        raise _refusal(str(folder), taken[0], ())


def refuse_other_objects(url: str, names: Iterable[str]) -> None:
    """Refuses a URL below which another program's weights lie; as `refuse_other_run`."""
    names = set(names)
    if {EXPERIMENT, VERSIONS} <= names:
        return
    if weights := weights_in(names):
        raise _refusal(url, _newest(dict.fromkeys(weights, 0.0)), weights)


def weights_in(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the paths that are named as weights, but for hidden ones."""
    shown = (name for name in names if not any(part.startswith(".") for part in name.split("/")))
    return tuple(name for name in shown if _is_weights(name))


def _is_weights(name: str) -> bool:
    last = name.rpartition("/")[2].lower()
    return last == _STATE or last.endswith(_WEIGHTS) or bool(_PARTS.search(last))


def _foreign(folder: Path) -> Iterator[str]:
    """Yields the paths of weights and of binary files of an unknown kind below a folder."""
    seen = 0
    for root, folders, names in os.walk(folder):
        hidden = (".", "__pycache__")
        folders[:] = sorted(inner for inner in folders if not inner.startswith(hidden))
        for name in sorted(names):
            path, seen = Path(root, name), seen + 1
            if seen > _MOST_FILES:
                return
            if not name.startswith(".") and (_is_weights(name) or _is_unknown(path)):
                yield path.relative_to(folder).as_posix()


def _is_unknown(path: Path) -> bool:
    """Whether a file is binary, and of no kind that lies beside a run."""
    name = path.name.lower()
    if name.endswith(_HARMLESS) or _RECORDS.search(name):
        return False
    try:
        with open_untrusted(path, most=None) as file:
            return b"\0" in file.read(_HEAD_BYTES)
    except (UserError, OSError):
        return False


def _newest(times_of_files: Mapping[str, float], stated: str | None = None) -> str:
    """Returns the checkpoint that TensorFlow's list states, or the newest by time and number."""
    if stated and f"{stated}.index" in times_of_files:
        return stated
    times: dict[str, float] = {}
    for name in weights_in(times_of_files) or times_of_files:
        prefix = _PARTS.sub("", name)
        times[prefix] = max(times_of_files[name], times.get(prefix, 0.0))
    if len(times) > 1:
        times.pop(_STATE, None)
    last = max(times.values()) - _ONE_SAVE
    return max((name for name in times if times[name] >= last), key=_numbers)


def _numbers(name: str) -> tuple[list[int], str]:
    return [int(digits[:18]) for digits in re.findall(r"[0-9]+", name)], name


def _read_state(folder: Path) -> str | None:
    """Returns the newest checkpoint by TensorFlow's file `checkpoint`, without its folders."""
    try:
        text = os.fsdecode(read_untrusted(folder / _STATE, most=_STATE_BYTES))
    except UserError:
        return None
    stated = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.MULTILINE)
    return re.split(r"[/\\]", stated[1])[-1] if stated else None


def _written_at(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _refusal(place: str, name: str, weights: Collection[str]) -> UserError:
    """Returns the error; `weights` are all files there that are named as weights."""
    path = f"{place.rstrip('/')}/{name}"
    if Path(path).with_name(MANIFEST).is_file():
        path = path.rpartition("/")[0]
    fix = f"take a new {Parameter('model_dir')}"
    if f"{name}.index" in weights or name.endswith(_READABLE):
        words = " ".join(map(str, (Setting("train.fine_tune.checkpoint", path), *_WHOLE)))
        fix += f"; {words} starts from that checkpoint"
    if not weights:
        problem = f"the folder holds {name}, which no run of stillbox wrote here"
        return UserError(problem, where=place, fix=f"{fix}, or move the file away")
    problem = f"the folder holds the run of another program; its newest checkpoint is {path}"
    return UserError(f"{problem}, and nothing is written there", where=place, fix=fix)
