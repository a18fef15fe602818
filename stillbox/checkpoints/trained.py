"""A trained model, loaded from a model directory or a packed model.

`importer` loads the weights of others, `saving` writes weights for other programs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import jax
import numpy as np

from stillbox.checkpoints.array_files import check_finite
from stillbox.checkpoints.model_directory import CheckpointChoice
from stillbox.checkpoints.packed import open_model
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import changed
from stillbox.experiment.updating import NO_CHANGES, Changes
from stillbox.models.build import abstract_detector
from stillbox.models.variables import Arrays
from stillbox.records.label_map import ClassSlots, LabelMap, assign_slots
from stillbox.references import Setting

if TYPE_CHECKING:
    from stillbox.checkpoints.import_report import ImportReport


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
    report: "ImportReport | None" = None
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
    overrides: Changes = NO_CHANGES,
    say: Callable[[str], None] = lambda line: None,
) -> TrainedModel:
    """Loads a model directory, one of its checkpoints, or a packed model.

    The step `best` is the newest if none was marked. `overrides` change the stored experiment.
    `say` gets notes about stored fields that have no effect.

    Raises:
        UserError: this is not a model directory, it has no such checkpoint, or the checkpoint does
            not fit the experiment with its overrides, or its weights are not finite.
    """
    checkpoint = open_model(directory, step)
    experiment = changed(checkpoint.read_experiment(say), overrides)
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
