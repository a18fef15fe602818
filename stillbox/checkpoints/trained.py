"""A trained model: loaded from a model directory or from weights, and written in other formats.

The other formats hold the weights under the names of the original.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import jax
import numpy as np
from safetensors.numpy import save

from stillbox.checkpoints.array_files import check_finite, write_npz
from stillbox.checkpoints.files import replacing, write_durably
from stillbox.checkpoints.importer import ImportOptions, ImportReport, import_weights
from stillbox.checkpoints.model_directory import CheckpointChoice
from stillbox.checkpoints.names import object_paths, parts_without_names, reference_names
from stillbox.checkpoints.packed import find_model, open_model
from stillbox.checkpoints.pretrained import resolve_weights
from stillbox.checkpoints.tf1 import checkpoint_files, write_tf1_checkpoint
from stillbox.checkpoints.tf2 import write_tf2_checkpoint
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import with_overrides
from stillbox.models.build import abstract_detector, build_detector
from stillbox.models.variables import Arrays, split_detector
from stillbox.records.label_map import ClassSlots, LabelMap, assign_slots
from stillbox.references import Parameter, Setting


@dataclass(frozen=True)
class TrainedModel:
    """A detector's configuration, weights and classes."""

    experiment: schema.Experiment
    label_map: LabelMap | None
    """Names of the classes; None for weights that came without any."""
    params: Arrays
    """Parameters by path."""
    stats: Arrays
    """Moving statistics by path."""
    source: str
    """Where the weights come from, for reports."""
    step: int | None = None
    """Training step of the weights, if known."""
    report: ImportReport | None = None
    """The report of the import, for a file of weights."""

    @property
    def name(self) -> str:
        """The source without the folders that lead to it, for files that are handed on."""
        return Path(self.source).name

    def class_names(self) -> Mapping[int, str]:
        """Returns display names by label map id; none without a label map."""
        return self.label_map.names if self.label_map else {}

    def named_by_config(self) -> Self:
        """Returns the model with the label map of the experiment's records, if it has none.

        Raises:
            UserError: the label map cannot be read.
        """
        data = self.experiment.data
        path = data.evaluation.label_map or data.train.label_map
        if self.label_map is not None or not path:
            return self
        return replace(self, label_map=LabelMap.from_file(path))

    def slots(self) -> ClassSlots:
        """Returns the label map's classes by class index of detections.

        Raises:
            UserError: there is no label map, or it does not fit the model's classes.
        """
        if self.label_map is None:
            raise UserError(
                "only weights are given, so that nothing says what their classes are",
                where=self.source,
                fix="give the model directory that training wrote, or a label map with "
                f"{Setting('data.evaluation.label_map', 'FILE')}",
            )
        model = self.experiment.model
        return assign_slots(self.label_map, model.num_classes, model.class_slots)


def load_trained(
    directory: Path,
    *,
    step: CheckpointChoice = "best",
    overrides: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> TrainedModel:
    """Loads a model directory, one of its checkpoints, or a packed model.

    The step `best` is the newest if none was marked. `overrides` change the stored experiment, each
    as `path=value`. `say` gets notes about stored fields that have no effect.

    Raises:
        UserError: this is not a model directory, it has no such checkpoint, or the checkpoint does
            not fit the experiment with its overrides, or its weights are not finite.
    """
    checkpoint = open_model(directory, step)
    experiment = with_overrides(checkpoint.read_experiment(say), overrides)
    arrays = checkpoint.parameters(prefer_ema=experiment.evaluation.use_ema)
    precision, quantization = experiment.evaluation.precision, experiment.train.quantization
    _, params, stats = abstract_detector(experiment.model, precision, quantization)
    check_shapes(params | stats, arrays, str(checkpoint.folder))
    check_finite({path: arrays[path] for path in params | stats}, str(checkpoint.folder))
    return TrainedModel(
        experiment=experiment,
        label_map=LabelMap.from_text(checkpoint.label_map, str(checkpoint.folder)),
        # `jnp.asarray` would compile a copy for each shape.
        params=jax.device_put({path: arrays[path] for path in params}),
        stats=jax.device_put({path: arrays[path] for path in stats}),
        source=f"{directory}, step {checkpoint.step}",
        step=checkpoint.step,
    )


def load_weights(experiment: schema.Experiment, weights: str) -> TrainedModel:
    """Builds the experiment's detector with weights from a file or a model directory.

    Raises:
        UserError: the file cannot be read, or a parameter is missing or has another shape.
    """
    detector = build_detector(experiment.model, quantization=experiment.train.quantization)
    options = ImportOptions(prefer_ema=experiment.evaluation.use_ema)
    report = import_weights(detector, experiment.model, weights, options)
    _, params, stats = split_detector(detector)
    stored = find_model(resolve_weights(weights))
    return TrainedModel(
        experiment=experiment,
        label_map=LabelMap.from_text(stored.label_map, str(stored.folder))
        if stored and stored.label_map
        else None,
        params=params,
        stats=stats,
        source=weights,
        report=report,
    )


def check_shapes(
    wanted: Mapping[str, jax.ShapeDtypeStruct], stored: Mapping[str, np.ndarray], where: str
) -> None:
    """Refuses a checkpoint of another architecture: overrides may have changed the model.

    Raises:
        UserError: an array is missing, or has another shape.
    """
    shapes = {path: str(list(array.shape)) for path, array in stored.items()}
    differences = [
        f"{path}: {list(array.shape)} wanted, {shapes.get(path, 'nothing')} stored"
        for path, array in wanted.items()
        if shapes.get(path) != str(list(array.shape))
    ]
    if differences:
        raise UserError(
            f"the weights do not fit the model, {len(differences)} of {len(wanted)} arrays differ: "
            + "; ".join(differences[:3]),
            where=where,
            fix="leave out what you set of the model's parts, sizes or classes",
        )


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
        tf2: write an object-based checkpoint of TF2, as `ckpt-1`, and not one of TF1.

    Raises:
        UserError: there is no such model directory or checkpoint; the target has an unknown
            ending, no folder, or exists; a part of the model has no names in such checkpoints.
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
