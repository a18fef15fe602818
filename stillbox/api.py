"""What `import stillbox` shows: the verbs as functions. The command line calls these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve, with_overrides
from stillbox.experiment.schema import Experiment
from stillbox.exporting.manifest import is_export
from stillbox.exporting.settings import ExportSettings
from stillbox.predicting.predictor import Predictor

if TYPE_CHECKING:
    from stillbox.checkpoints.trained import TrainedModel
    from stillbox.evaluation.evaluator import EvaluationResult, Progress
    from stillbox.evaluation.step_observer import StepObserver
    from stillbox.exporting.export import Exported
    from stillbox.inputs.dataset import Dataset
    from stillbox.predicting.backend import Pixels
    from stillbox.profiling.steps import ProfileSteps
    from stillbox.training.loop import Outcome

Config = str | Path | Experiment
"""A recipe's name, a config file, or an experiment."""
Step = int | Literal["best", "latest"]

Say = Callable[[str], None]

_EXPORT_IMAGES = 4


def _silent(line: str) -> None:
    """Says nothing."""


def load(
    source: Config,
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Sequence[str] = (),
    runtime: str = "",
    batch_size: int = 1,
    say: Say = _silent,
) -> Predictor:
    """Loads a model for prediction.

    Args:
        source: a model directory, the folder of an export, or a config for `weights`.
        weights: a TF1 checkpoint, `.npz`, `.safetensors`, `.pth` or model directory.
        step: which checkpoint of a model directory.
        overrides: changes of the form `field=value`, as `--set` takes them.
        runtime: runs an export by something else than its format's first choice: `openvino` for
            ONNX.
        batch_size: images at a time.
        say: called with what was taken from a weights file.

    Raises:
        UserError: there is no such model, or its weights do not fit.
    """
    if isinstance(source, str | Path) and is_export(Path(source)):
        from stillbox.exporting.backend import ExportBackend

        if weights or overrides:
            raise UserError(
                "an export is finished: it takes neither weights nor changes",
                where=str(source),
                fix="export again with them",
            )
        return Predictor(ExportBackend(Path(source), runtime), batch_size=batch_size)
    if runtime:
        raise _no_runtime(source, runtime)
    from stillbox.predicting.checkpoint_backend import CheckpointBackend

    prepare_process()
    model = load_model(source, weights=weights, step=step, overrides=overrides, say=say)
    return Predictor(CheckpointBackend(model), batch_size=batch_size)


def load_model(
    source: Config,
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Sequence[str] = (),
    say: Say = _silent,
) -> "TrainedModel":
    """Loads weights with the experiment and the label map that belong to them.

    Args:
        source: a model directory, or a config for `weights`.
        weights: a TF1 checkpoint, `.npz`, `.safetensors`, `.pth` or model directory.
        step: which checkpoint of a model directory.
        overrides: changes of the form `field=value`.
        say: called with what was taken from a weights file.

    Raises:
        UserError: there is no such model, or its weights do not fit.
    """
    from stillbox.checkpoints.trained import load_trained, load_weights

    if weights is not None:
        model = load_weights(as_experiment(source, overrides), str(weights))
        if model.report is not None:
            say(model.report.render())
        return model
    if isinstance(source, Experiment) or not Path(source).is_dir():
        name = source.name if isinstance(source, Experiment) else source
        raise UserError(
            f"{name} is not a model directory, and a config alone has no weights",
            fix="add --weights FILE, or give the --model-dir of a training run",
        )
    return load_trained(Path(source), step=step, overrides=overrides)


def as_experiment(config: Config, overrides: Sequence[str] = ()) -> Experiment:
    """Returns the experiment of a config, with changes.

    Raises:
        UserError: it cannot be read, or contradicts itself.
    """
    if not isinstance(config, Experiment):
        return resolve(config, overrides).experiment
    return with_overrides(config, overrides)


def train(
    config: Config,
    model_directory: str | Path,
    *,
    overrides: Sequence[str] = (),
    origins: Mapping[str, str] | None = None,
    profile: "ProfileSteps | None" = None,
) -> "Outcome":
    """Trains into a model directory, or resumes the run that is there.

    Args:
        config: what to train.
        model_directory: where checkpoints, metrics and everything else goes.
        overrides: changes of the form `field=value`, as `--set` takes them.
        origins: dotted field -> where it was set, for messages.
        profile: steps to trace.

    Raises:
        UserError: experiment, data and directory do not fit together.
        FloatingPointError: the loss is not finite.
    """
    from stillbox.training.loop import train as run

    prepare_process()
    return run(as_experiment(config, overrides), Path(model_directory), origins, profile=profile)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of a model."""

    result: "EvaluationResult"
    """Scores, curves, and the detections of every image."""
    report: Path
    """The page with scores, curves and pictures."""
    experiment: Experiment
    """What was scored, on which records."""
    source: str
    """Where the weights come from."""
    warnings: tuple[str, ...]
    """What is odd about the records, the classes and the label map."""

    @property
    def summary(self) -> Mapping[str, float | None]:
        """The metrics by name, such as `AP` and `AP50`."""
        return self.result.scores.summary


def evaluate(
    source: Config,
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Sequence[str] = (),
    runtime: str = "",
    output: str | Path | None = None,
    progress: "Progress | None" = None,
    observer: "StepObserver | None" = None,
    say: Say = _silent,
) -> Evaluation:
    """Scores a model on the records that its experiment names, and writes a report.

    Args:
        source: a model directory, the folder of an export, or a config for `weights`.
        weights: a TF1 checkpoint, `.npz`, `.safetensors`, `.pth` or model directory.
        step: which checkpoint of a model directory.
        overrides: changes of the form `field=value`.
        runtime: runs an export by something else than its format's first choice.
        output: folder of the report; `evaluation` in the given folder, or here for a config, if
            not given.
        progress: called after every batch.
        observer: observes the batches of a model; an export has none.
        say: called with what was taken from a weights file, and before the images are read.

    Raises:
        UserError: model, records and label map do not fit together.
    """
    from stillbox.evaluation.history import HISTORY, History, read_history
    from stillbox.evaluation.scoring import open_evaluation, write_evaluation

    prepare_process()
    directory = None if weights is not None or isinstance(source, Experiment) else Path(source)
    score = _scorer(source, weights, step, overrides, runtime, observer, say)
    folder = Path(output) if output else (directory or Path()) / "evaluation"
    folder.mkdir(parents=True, exist_ok=True)  # before an hour is spent on what cannot be kept
    dataset = open_evaluation(score.experiment)
    limit = score.experiment.evaluation.max_examples or len(dataset)
    say(f"{score.source}: scoring {min(limit, len(dataset))} images")
    result = score.run(dataset, progress)
    history = read_history(directory / HISTORY) if directory else History()
    page = write_evaluation(
        result, score.experiment, dataset, folder, source=score.source, history=history
    )
    left_out = [f"{result.left_out} unusable records were not scored"] * bool(result.left_out)
    warnings = *result.warnings, *dataset.source.problems.lines(), *left_out
    return Evaluation(
        result=result,
        report=page,
        experiment=score.experiment,
        source=score.source,
        warnings=warnings,
    )


class _Scorer(NamedTuple):
    """A model or an export, ready to be scored."""

    experiment: Experiment
    source: str
    run: "Callable[[Dataset, Progress | None], EvaluationResult]"


def _scorer(
    source: Config,
    weights: str | Path | None,
    step: Step,
    overrides: Sequence[str],
    runtime: str,
    observer: "StepObserver | None",
    say: Say,
) -> _Scorer:
    from stillbox.evaluation.program import score_program
    from stillbox.evaluation.scoring import score_dataset
    from stillbox.evaluation.step_observer import NO_OBSERVER
    from stillbox.predicting.scoring import score_backend

    if isinstance(source, str | Path) and is_export(Path(source)):
        from stillbox.exporting.manifest import EXPERIMENT

        backend = load(source, weights=weights, runtime=runtime).backend
        experiment = as_experiment(Path(source) / EXPERIMENT, overrides)
        return _Scorer(
            experiment,
            backend.source,
            lambda dataset, progress: score_backend(backend, experiment, dataset, progress),
        )
    if runtime:
        raise _no_runtime(source, runtime)
    model = load_model(source, weights=weights, step=step, overrides=overrides, say=say)

    def run(dataset: "Dataset", progress: "Progress | None") -> "EvaluationResult":
        detect = score_program(model.experiment).bind(model.params, model.stats)
        return score_dataset(
            detect,
            model.experiment,
            dataset,
            progress,
            trained=model.label_map,
            observer=observer or NO_OBSERVER,
        )

    return _Scorer(model.experiment, model.source, run)


def _no_runtime(source: Config, runtime: str) -> UserError:
    return UserError(
        f"only an export runs in {runtime}",
        where=str(source),
        fix=f"stillbox export {source} --format onnx, and give its folder",
    )


def export(
    source: Config,
    output: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Sequence[str] = (),
    images: Sequence[str | Path] = (),
    overwrite: bool = False,
    settings: ExportSettings | None = None,
    say: Say = _silent,
    **changes: Any,  # noqa: ANN401
) -> "Exported":
    """Exports a model, runs the artefact, and compares it with the checkpoint.

    Args:
        source: a model directory, or a config for `weights`.
        output: folder of the artefact; `DIR/export/FORMAT` if not given.
        weights: a TF1 checkpoint, `.npz`, `.safetensors`, `.pth` or model directory.
        step: which checkpoint of a model directory.
        overrides: changes of the form `field=value`.
        images: image files to compare on, and to calibrate on; records of the evaluation, or
            drawn scenes, if none are given.
        overwrite: replace an export that is there.
        settings: what the artefact is to be; the experiment's own signature and the defaults, if
            not given.
        say: called with a line for each stage.
        changes: fields of `ExportSettings`, such as `format="onnx"`.

    Raises:
        UserError: an extra is missing, the format cannot hold the model, or the artefact differs
            from the checkpoint. Nothing is left behind.
    """
    from stillbox.exporting.export import export_model

    prepare_process()
    model = load_model(source, weights=weights, step=step, overrides=overrides, say=say)
    settings = replace(settings or _own_settings(model, changes), **changes).checked()
    if output is None and weights is None and not isinstance(source, Experiment):
        output = Path(source) / "export" / settings.format
    folder = Path(output) if output else Path("export") / settings.format
    found = _export_images(model, images)
    return export_model(model, folder, settings, found, overwrite=overwrite, say=say)


def _own_settings(model: "TrainedModel", changes: Mapping[str, Any]) -> ExportSettings:
    """Returns the settings that an experiment asks for; TFLite has one signature only."""
    own = model.experiment.export.signature
    return ExportSettings(signature="detection_api" if changes.get("format") == "tflite" else own)


def _export_images(model: "TrainedModel", files: Sequence[str | Path]) -> "list[Pixels]":
    """Returns images to compare an export on: the given ones, or what there is."""
    from stillbox.evaluation.scoring import open_evaluation
    from stillbox.predicting.images import read_image
    from stillbox.records.scenes_drawing import draw_scene

    if files:
        return [read_image(file)[0] for file in files]
    try:
        dataset = open_evaluation(model.experiment)
        records = range(min(_EXPORT_IMAGES, len(dataset)))
        return [dataset.image(record) for record in records]
    except UserError:  # the records may be on another machine by now
        return [draw_scene(np.random.default_rng(seed)).image for seed in range(_EXPORT_IMAGES)]
