"""Checkpoints of a run under the names of the original, which programs of tutorials expect.

TF2 has `ckpt-3`, with the checkpoint of step 0 as the first, TF1 has `model.ckpt-2000`; the file
`checkpoint` lists them. Checkpoints of other programs stay, and stay listed.
Source: `object_detection/model_lib_v2.py`, `legacy/trainer.py`.
"""

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from stillbox.checkpoints.files import MAX_JSON_BYTES, read_manifest, write_manifest
from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.checkpoints.saving import save_weights
from stillbox.checkpoints.tf1 import checkpoint_files
from stillbox.errors import UserError
from stillbox.records.files import write_whole
from stillbox.untrusted import read_untrusted

Form = Literal["tf1", "tf2"]
_STATE = "checkpoint"
_WRITTEN = "original_checkpoints.json"
"""The names of checkpoints that runs of a folder wrote, with the SHA-256 of their indexes."""
_LISTED = re.compile(r'^(?:all_)?model_checkpoint_paths?:\s*"(.*)"', re.MULTILINE)

_TF2 = re.compile(r"ckpt-([0-9]{1,18})\.")


def prefix_of(step: int, every: int, form: Form, after: int = 0) -> str:
    """Returns the name of a checkpoint: TF1 counts steps, TF2 checkpoints, `after` others."""
    return f"model.ckpt-{step}" if form == "tf1" else f"ckpt-{after + 1 + math.ceil(step / every)}"


def write_checkpoints(directory: Path, form: Form, say: Callable[[str], None]) -> None:
    """Writes the kept checkpoints of a model directory into it, in the form of the original.

    The file `checkpoint` lists them, as TensorFlow's `latest_checkpoint` expects. Beside a TF1
    checkpoint lies an empty graph (`.meta`), since programs of tutorials look for the step in its
    name.
    Nothing is written if `directory` is no model directory or has no checkpoint. `say` gets the
    reason if the original has no names for the model, or a name is taken.
    """
    if not is_model_directory(directory):
        return
    run = ModelDirectory.open(directory)
    steps = [step for step in run.steps() if step]
    every = run.read_experiment().train.checkpoint_every or max(steps, default=1)
    try:
        ours = _Written(directory)
        after = ours.highest_of_others() if form == "tf2" else 0
        names = {step: prefix_of(step, every, form, after) for step in steps}
        for step, name in names.items():
            if ours.is_taken(name):
                say(f"{name} is another program's: that of step {step} is not written")
                continue
            ours.write(name, step, form)
    except UserError as error:
        say(f"no {form.upper()} checkpoints are written beside those of stillbox: {error.what}")
        return
    if written := [name for name in names.values() if not ours.is_taken(name)]:
        write_list(directory, written, keep=ours.listed_of_others())


class _Written:
    """The checkpoints under the original's names in a folder: own ones and others."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / _WRITTEN
        self._own: dict[str, object] = {}
        if self._path.is_file():
            problem, fix = "the list of own checkpoints is damaged", "remove the file"
            self._own = read_manifest(self._path, problem=problem, fix=fix)

    def is_taken(self, name: str) -> bool:
        """Whether a file of a checkpoint is there that no run of this folder wrote."""
        data, index = checkpoint_files(self._folder / name)
        if not os.path.lexists(index):
            return os.path.lexists(data)
        return self._own.get(name) != _digest(index)

    def write(self, name: str, step: int, form: Form) -> None:
        """Writes a checkpoint, and that it is an own one."""
        prefix = self._folder / name
        save_weights(self._folder, prefix, step=step, tf2=form == "tf2", overwrite=True)
        if form == "tf1":
            write_whole(Path(f"{prefix}.meta"), b"", below=self._folder)
        self._own[name] = _digest(checkpoint_files(prefix)[1])
        write_whole(self._path, write_manifest(self._own), below=self._folder)

    def highest_of_others(self) -> int:
        """Returns the highest number of others' checkpoints of TF2; 0 without one."""
        names = (path.name for path in self._folder.glob("ckpt-*"))
        numbers = {int(number[1]) for name in names if (number := _TF2.match(name))}
        return max((number for number in numbers if self.is_taken(f"ckpt-{number}")), default=0)

    def listed_of_others(self) -> tuple[str, ...]:
        """Returns what the file `checkpoint` lists beside own checkpoints."""
        with suppress(UserError):
            text = os.fsdecode(read_untrusted(self._folder / _STATE, most=MAX_JSON_BYTES))
            names = dict.fromkeys(reversed(_LISTED.findall(text)))
            return tuple(name for name in reversed(names) if name not in self._own)
        return ()


def _digest(path: Path) -> str:
    with suppress(UserError):
        return hashlib.sha256(read_untrusted(path, most=MAX_JSON_BYTES)).hexdigest()
    return ""


def write_list(folder: Path, names: Sequence[str], keep: Iterable[str] = ()) -> None:
    """Writes the file `checkpoint`, which gives `latest_checkpoint` the names, oldest first.

    Args:
        folder: of the file.
        names: the checkpoints.
        keep: older ones of other programs, as they are listed.
    """
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in (*keep, *names)]
    write_whole(folder / _STATE, os.fsencode("\n".join([*lines, ""])), below=folder)
