"""Writes the weights of a trained model for other programs, under the names of the original."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from stillbox.checkpoints.array_files import write_npz
from stillbox.checkpoints.files import replacing, write_durably
from stillbox.checkpoints.model_directory import CheckpointChoice
from stillbox.checkpoints.names import object_paths, parts_without_names, reference_names
from stillbox.checkpoints.packed import open_model
from stillbox.checkpoints.tf1 import checkpoint_files, write_tf1_checkpoint
from stillbox.checkpoints.tf2 import write_tf2_checkpoint
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.references import Parameter

_SHOWN = 5


@dataclass(frozen=True)
class SavedWeights:
    """What was written."""

    source: str
    """Where the weights come from."""
    files: tuple[Path, ...]
    named: int
    """Number of arrays under the original's names."""
    unnamed: tuple[str, ...]
    """Arrays under their paths, because the original has no name for them."""
    numbers: int
    """Number of elements of all arrays."""
    averaged: bool
    """Whether moving averages of the parameters were written."""

    def render(self) -> str:
        """Returns the report as a few lines of text."""
        kind = "moving averages" if self.averaged else "the parameters themselves"
        rest = len(self.unnamed) - _SHOWN
        shown = [*self.unnamed[:_SHOWN]] + [f"and {rest} more"] * (rest > 0)
        lines = [
            f"weights of {self.source}: {kind}",
            f"  written    {self.named + len(self.unnamed):4d} arrays, {self.numbers:,} numbers",
            f"  renamed    {self.named:4d} as the original names them",
            f"  own names  {len(self.unnamed):4d}",
            *(f"                  {line}" for line in shown),
            f"  files      {', '.join(map(str, self.files))}",
        ]
        return "\n".join(lines)


def save_weights(
    directory: str | Path,
    target: str | Path,
    *,
    step: CheckpointChoice = "best",
    overwrite: bool = False,
    tf2: bool = False,
) -> SavedWeights:
    """Writes the weights of a model directory for other programs.

    Parameters and moving statistics get the names of the original's checkpoints; arrays without
    such a name keep their paths. Moving averages are written if evaluation uses them. Files appear
    complete or not at all. The step `best` is the newest if none was marked.

    Args:
        target: a file ending in `.npz` or `.safetensors`, or the prefix of a TF1 checkpoint, such
            as `model.ckpt` or `model.ckpt-1000`, which holds `global_step` too.
        overwrite: replace weights that are there; another file is never replaced.
        tf2: write an object-based checkpoint of TF2, as `ckpt-1`, and not one of TF1.

    Raises:
        UserError: there is no such model directory or checkpoint; the target has an unknown
            ending, no folder, or exists and is not to be replaced; a part of the model has no names
            in such checkpoints.
    """
    target = Path(target)
    is_file = target.suffix in (".npz", ".safetensors")
    if is_file and tf2:
        problem, fix = f"a TF2 checkpoint is no {target.suffix}", "give a prefix such as ckpt-1"
        raise UserError(problem, where=str(target), fix=fix)
    files = (target,) if is_file else _checkpoint_files(target)
    _check_place(files, overwrite)
    checkpoint = open_model(Path(directory), step)
    experiment = checkpoint.read_experiment()
    # A packed model has averages in place of the parameters, and no section of them.
    averaged = experiment.evaluation.use_ema and experiment.train.ema_decay is not None
    arrays = checkpoint.parameters(prefer_ema=averaged)
    named = (object_paths if tf2 else reference_names)(experiment.model, arrays)
    renamed = {named.get(path, path): array for path, array in arrays.items()}
    unnamed = parts_without_names(experiment.model, arrays, named)
    if unnamed and not is_file:
        kind = "TF2" if tf2 else "TF1"
        problem = f"no names in {kind} checkpoints are known for {', '.join(unnamed)}"
        fix = "end the name in .npz or .safetensors, where such arrays keep stillbox's names"
        raise UserError(problem, where=str(target), fix=fix)
    if is_file:
        _write_file(target, renamed)
    elif tf2:
        write_tf2_checkpoint(target, renamed)
    else:
        step_number = np.asarray(checkpoint.step, np.int64)
        write_tf1_checkpoint(target, renamed | {"global_step": step_number})
    return SavedWeights(
        source=f"{directory}, step {checkpoint.step}",
        files=files,
        named=len(named),
        unnamed=tuple(path for path in arrays if path not in named),
        numbers=sum(array.size for array in arrays.values()),
        averaged=averaged,
    )


def _write_file(target: Path, arrays: dict[str, np.ndarray]) -> None:
    with replacing(target) as unfinished:
        if target.suffix == ".npz":
            write_npz(unfinished, arrays)
        else:
            contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
            write_durably(unfinished, save(contiguous))


def _checkpoint_files(prefix: Path) -> tuple[Path, ...]:
    if prefix.suffix and not prefix.suffix.startswith(".ckpt"):
        problem = f"weights of type {prefix.suffix!r} cannot be written"
        fix = "end the name in .npz, .safetensors or .ckpt (a checkpoint)"
        raise UserError(problem, where=str(prefix), fix=fix)
    return checkpoint_files(prefix)


def _check_place(files: tuple[Path, ...], overwrite: bool) -> None:
    folder = files[0].parent
    if not folder.is_dir():
        raise UserError("there is no such folder", where=str(folder), fix=f"mkdir -p {folder}")
    existing = [path for path in files if path.exists()]
    if existing and not overwrite:
        fix = f"choose another name, or add {Parameter('overwrite')}"
        raise UserError("the file exists", where=str(existing[0]), fix=fix)
    for path in existing:
        try:
            weights = open_weights(path)
            # The first array tells whether the data file is of the index.
            if len(existing) == len(files):
                next(iter(weights.arrays.values()), None)
        except UserError as error:
            problem, fix = f"the file is not replaced: {error.what}", "choose another name"
            raise UserError(problem, where=str(path), fix=fix) from error
