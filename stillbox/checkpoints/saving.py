"""A trained model's weights in other formats, under the names that the original gave them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from stillbox.checkpoints.files import sync_folder, write_durably
from stillbox.checkpoints.model_directory import ModelDirectory, Which
from stillbox.checkpoints.names import reference_names
from stillbox.checkpoints.npz import write_npz
from stillbox.checkpoints.tf1_writer import checkpoint_files, write_tf1_checkpoint
from stillbox.errors import UserError
from stillbox.experiment.yaml_config import from_yaml

_GLOBAL_STEP = "global_step"
_SHOWN = 5


@dataclass(frozen=True)
class SavedWeights:
    """The account of what was written."""

    source: str
    """Where the weights come from."""
    files: tuple[Path, ...]
    """What was written."""
    named: Mapping[str, str]
    """The original's name by path, of all arrays that have one."""
    own: tuple[str, ...]
    """Paths of those that have none and keep their path."""
    numbers: int
    """How many numbers all arrays hold."""
    averaged: bool
    """Moving averages of the parameters were taken."""

    def render(self) -> str:
        """Returns the account as a few lines of text."""
        kind = "moving averages" if self.averaged else "the parameters themselves"
        lines = [
            f"weights of {self.source}: {kind}",
            f"  written    {len(self.named) + len(self.own):4d} arrays, {self.numbers:,} numbers",
            f"  renamed    {len(self.named):4d} as the original names them",
            f"  own names  {len(self.own):4d}"
            + "".join(f"\n                  {path}" for path in self.own[:_SHOWN])
            + (f"\n                  and {len(self.own) - _SHOWN} more" * self._has_more),
            f"  files      {', '.join(map(str, self.files))}",
        ]
        return "\n".join(lines)

    @property
    def _has_more(self) -> bool:
        return len(self.own) > _SHOWN


def save_weights(
    directory: str | Path, target: str | Path, *, step: Which = "best", overwrite: bool = False
) -> SavedWeights:
    """Writes the weights of a model directory for other programs.

    Parameters and moving statistics get the names of the original's checkpoints; what the original
    does not have keeps its path. Evaluation's choice between parameters and their moving averages
    holds here too. Files get their names when they are whole.

    Args:
        directory: what `stillbox train` wrote.
        target: a file ending in `.npz` or `.safetensors`, or the prefix of a TF1 checkpoint, such
            as `model.ckpt` or `model.ckpt-1000`, which holds `global_step` too.
        step: which checkpoint; `best` is the newest where none was marked.
        overwrite: replace what is there.

    Raises:
        UserError: there is no such model directory or checkpoint; the target's ending stands for no
            format, its folder is not there, or it is there already.
    """
    target = Path(target)
    files = _files_of(target)
    _check_place(files, overwrite)
    checkpoint = ModelDirectory.open(directory).checkpoint(step)
    experiment = from_yaml(checkpoint.experiment, str(checkpoint.folder))
    averaged = experiment.evaluation.use_ema and "ema" in checkpoint.sections
    arrays = checkpoint.parameters(prefer_ema=experiment.evaluation.use_ema)
    named = reference_names(experiment.model, arrays)
    renamed = {named.get(path, path): array for path, array in arrays.items()}
    if target.suffix in _WRITERS:
        _write_file(target, renamed)
    else:
        number = np.asarray(checkpoint.step, np.int64)
        write_tf1_checkpoint(target, renamed | {_GLOBAL_STEP: number})
    return SavedWeights(
        source=f"{directory}, step {checkpoint.step}",
        files=files,
        named=named,
        own=tuple(path for path in arrays if path not in named),
        numbers=sum(array.size for array in arrays.values()),
        averaged=averaged,
    )


def _write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    write_durably(path, save({name: np.ascontiguousarray(a) for name, a in arrays.items()}))


_WRITERS: Mapping[str, Callable[[Path, Mapping[str, np.ndarray]], None]] = {
    ".npz": write_npz,
    ".safetensors": _write_safetensors,
}


def _write_file(target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    unfinished = target.with_name(f".{target.name}.unfinished")
    _WRITERS[target.suffix](unfinished, arrays)
    unfinished.replace(target)
    sync_folder(target.parent)


def _files_of(target: Path) -> tuple[Path, ...]:
    """Returns what will be written."""
    if target.suffix in _WRITERS:
        return (target,)
    if target.suffix and not target.suffix.startswith(".ckpt"):
        raise UserError(
            f"weights of type {target.suffix!r} cannot be written",
            where=str(target),
            fix="end the name in .npz, .safetensors or .ckpt (a TF1 checkpoint)",
        )
    return checkpoint_files(target)


def _check_place(files: tuple[Path, ...], overwrite: bool) -> None:
    folder = files[0].parent
    if not folder.is_dir():
        raise UserError("there is no such folder", where=str(folder), fix=f"mkdir -p {folder}")
    taken = [path for path in files if path.exists()]
    if taken and not overwrite:
        fix = "choose another name, or add --overwrite"
        raise UserError("the file is there already", where=str(taken[0]), fix=fix)
