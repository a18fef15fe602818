"""Checkpoints in the form and under the names of the original, beside those of a model directory.

Programs of tutorials name them: `ckpt-3` of TF2, the first of which is that of step 0, and
`model.ckpt-2000` of TF1. Source: `object_detection/model_lib_v2.py`, `legacy/trainer.py`.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.checkpoints.trained import save_weights
from stillbox.errors import UserError
from stillbox.records.files import write_whole

Form = Literal["tf1", "tf2"]


def prefix_of(step: int, every: int, form: Form) -> str:
    """Returns the name of a checkpoint.

    Args:
        step: of training.
        every: steps between two checkpoints.
        form: TF1 counts steps, TF2 checkpoints.
    """
    return f"model.ckpt-{step}" if form == "tf1" else f"ckpt-{1 + math.ceil(step / every)}"


def write_checkpoints(directory: Path, form: Form, say: Callable[[str], None]) -> None:
    """Writes the kept checkpoints of a model directory into it, in the form of the original.

    The file `checkpoint` lists them, as TensorFlow's `latest_checkpoint` expects. Beside those of
    TF1 lies an empty graph (`.meta`), since programs of tutorials look for the step in its name.

    Args:
        directory: of a run; nothing is written if it is no model directory, or has no checkpoint.
        form: of the files.
        say: called with the reason if the original has no names for the model.
    """
    if not is_model_directory(directory):
        return
    run = ModelDirectory.open(directory)
    steps = [step for step in run.steps() if step]
    every = run.read_experiment().train.checkpoint_every or max(steps, default=1)
    names = [prefix_of(step, every, form) for step in steps]
    try:
        for step, name in zip(steps, names, strict=True):
            save_weights(directory, directory / name, step=step, tf2=form == "tf2", overwrite=True)
            if form == "tf1":
                write_whole(directory / f"{name}.meta", b"", below=directory)
    except UserError as error:
        say(f"no {form.upper()} checkpoints are written beside those of stillbox: {error.what}")
        return
    if names:
        write_list(directory, names)


def write_list(folder: Path, names: Sequence[str]) -> None:
    """Writes the file `checkpoint`, which tells TensorFlow's `latest_checkpoint` the names.

    Args:
        folder: of the checkpoints.
        names: of the checkpoints in it, oldest first; at least one.
    """
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    write_whole(folder / "checkpoint", "\n".join([*lines, ""]).encode(), below=folder)
