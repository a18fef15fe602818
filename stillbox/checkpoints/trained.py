"""A trained model, loaded from a model directory or from weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import jax
import numpy as np

from stillbox.checkpoints.finite import check_finite
from stillbox.checkpoints.importer import ImportReport, import_weights
from stillbox.checkpoints.model_directory import Which
from stillbox.checkpoints.packed import find_model, open_model
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import with_overrides
from stillbox.models.abstract import abstract_detector
from stillbox.models.build import build_detector
from stillbox.models.variables import Arrays, split_detector
from stillbox.records.class_slots import ClassSlots, assign_slots
from stillbox.records.label_map import LabelMap


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
    """Of the import of a weights file."""

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
                "--set data.evaluation.label_map=FILE",
            )
        model = self.experiment.model
        return assign_slots(self.label_map, model.num_classes, model.class_slots)


def load_trained(
    directory: Path,
    *,
    step: Which = "best",
    overrides: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> TrainedModel:
    """Loads a model directory, one of its checkpoints, or a packed model.

    Args:
        directory: what `stillbox train` or `stillbox pack` wrote.
        step: which checkpoint of a model directory; `best` is the newest if none was marked.
        overrides: changes to the stored experiment, of the form `path=value`.
        say: called with a note about stored fields that have no effect.

    Raises:
        UserError: this is no model directory, it has no such checkpoint, or the checkpoint does
            not fit the experiment with its overrides, or its weights are not finite.
    """
    checkpoint = open_model(directory, step)
    experiment = with_overrides(checkpoint.read_experiment(say), overrides)
    arrays = checkpoint.parameters(prefer_ema=experiment.evaluation.use_ema)
    precision, quantization = experiment.evaluation.precision, experiment.train.quantization
    _, params, stats = abstract_detector(experiment.model, precision, quantization)
    _check_shapes(params | stats, arrays, str(checkpoint.folder))
    check_finite({path: arrays[path] for path in params | stats}, str(checkpoint.folder))
    return TrainedModel(
        experiment=experiment,
        label_map=LabelMap.from_text(checkpoint.label_map, str(checkpoint.folder)),
        params={path: jax.numpy.asarray(arrays[path]) for path in params},
        stats={path: jax.numpy.asarray(arrays[path]) for path in stats},
        source=f"{directory}, step {checkpoint.step}",
        step=checkpoint.step,
    )


def load_weights(experiment: schema.Experiment, weights: str) -> TrainedModel:
    """Builds the experiment's detector with all its weights from a file or a model directory.

    Only a model directory brings a label map.

    Raises:
        UserError: the file cannot be read, or a parameter is missing or has another shape.
    """
    detector = build_detector(experiment.model, quantization=experiment.train.quantization)
    report = import_weights(
        detector,
        experiment.model,
        weights,
        scope="detection",
        load_heads=True,
        min_loaded=1.0,
        prefer_ema=experiment.evaluation.use_ema,
    )
    _, params, stats = split_detector(detector)
    own = find_model(Path(weights))
    return TrainedModel(
        experiment=experiment,
        label_map=LabelMap.from_text(own.label_map, str(own.folder))
        if own and own.label_map
        else None,
        params=params,
        stats=stats,
        source=weights,
        report=report,
    )


def _check_shapes(
    wanted: Mapping[str, jax.ShapeDtypeStruct], stored: Mapping[str, np.ndarray], where: str
) -> None:
    """Refuses a checkpoint of another architecture: overrides may have changed the model."""
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
            fix="leave out what --set changes in the model's parts, sizes or classes",
        )
