"""The public functions of `stillbox`; the command line calls these."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from stillbox.devices.announcing import announcing
from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.experiment.resolve import (
    Resolved,
    changed,
    classes_of_weights,
    is_recipe,
    read_config,
    resolve,
)
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import NO_CHANGES, Changes, merged
from stillbox.exporting.manifest import finished_export, is_export
from stillbox.exporting.settings import FASTEST, ExportSettings
from stillbox.object_storage import url_of
from stillbox.predicting.predictor import Predictor
from stillbox.printing import count_text
from stillbox.records.files import make_folder, refuse_links
from stillbox.references import Command, Parameter

if TYPE_CHECKING:
    from stillbox.checking.memory_verdict import Machine
    from stillbox.checking.time_limit import TimeLimit
    from stillbox.checkpoints.remote_directory import ModelPlace
    from stillbox.checkpoints.trained import TrainedModel
    from stillbox.evaluation.evaluator import EvaluationResult, ImageProgress
    from stillbox.evaluation.step_observer import StepObserver
    from stillbox.evaluation.tiling import Tiling
    from stillbox.exporting.export import Exported
    from stillbox.inputs.dataset import Dataset
    from stillbox.predicting.backend import Backend
    from stillbox.profiling.steps import ProfileSteps
    from stillbox.scaling.ray_scale import Workers
    from stillbox.training.loop import Outcome

    Score = Callable[[Experiment, Dataset, ImageProgress | None], EvaluationResult]

Config = str | Path | Experiment
"""A recipe's name, a config file, or an experiment."""
Step = int | Literal["best", "latest"]

Say = Callable[[str], None]


def _silent(line: str) -> None:
    """Prints nothing."""


def load(
    source: Config,
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Changes = NO_CHANGES,
    runtime: str = "",
    batch_size: int = 1,
    tiling: "Tiling | Literal[False] | None" = None,
    say: Say = _silent,
) -> Predictor:
    """Loads a model for prediction.

    Args:
        source: a model directory or its URL, one of its checkpoints, a packed model, the folder of
            an export, or a config for `weights`.
        weights: a TF1 checkpoint, `.npz`, `.safetensors`, `.pth` or model directory.
        step: checkpoint of a model directory.
        overrides: changes of fields, such as `{"train.batch_size": 8}`.
        runtime: of an export, such as `openvino` for ONNX; `fastest`: measure the installed ones;
            empty: the format's default.
        batch_size: images, or tiles of images, at a time.
        tiling: the tiles of large images to detect in; None: the model's own, if it has any;
            False: whole images.
        say: called with a report on a weights file, with stored fields that have no effect, and
            with what is run of an export.

    Raises:
        UserError: there is no such model, or its weights do not fit.
    """
    if _is_export(source, runtime):
        from stillbox.exporting.backend import ExportBackend, fastest_backend

        if weights or overrides or step != "best":
            raise finished_export(source)
        folder = Path(str(source))
        fastest = runtime == FASTEST
        backend = fastest_backend(folder, say) if fastest else ExportBackend(folder, runtime)
        say(f"{backend.source}: an export, a program that runs with your rights")
        return Predictor(backend, batch_size=batch_size, tiling=tiling)
    from stillbox.predicting.checkpoint_backend import CheckpointBackend

    prepare_process()
    model = load_model(source, weights=weights, step=step, overrides=overrides, say=say)
    return Predictor(CheckpointBackend(model), batch_size=batch_size, tiling=tiling)


def load_model(
    source: Config,
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Changes = NO_CHANGES,
    say: Say = _silent,
) -> "TrainedModel":
    """Loads weights with their experiment and label map; for the arguments see `load`.

    Raises:
        UserError: there is no such model, or its weights do not fit.
    """
    from stillbox.checkpoints.packed import is_packed
    from stillbox.checkpoints.remote_directory import model_place
    from stillbox.checkpoints.trained import load_trained

    if weights is not None:
        from stillbox.checkpoints.importer import load_weights

        overrides = merged(classes_of_weights(source, weights), overrides)
        model = load_weights(as_experiment(source, overrides), str(weights))
        if model.report is not None:
            say(model.report.render())
        return model
    if not isinstance(source, Experiment) and (url := url_of(source)):
        with model_place(url, step=step) as place:
            model = load_trained(place.folder, step=step, overrides=overrides, say=say)
            return replace(model, source=f"{url}, step {model.step}")
    if isinstance(source, Experiment) or not (Path(source).is_dir() or is_packed(Path(source))):
        name = source.name if isinstance(source, Experiment) else source
        raise UserError(
            f"{name} is not a model directory, and a config alone has no weights",
            fix=f"add {Parameter('weights', 'FILE')}, or give the model directory of a "
            "training run",
        )
    return load_trained(Path(source), step=step, overrides=overrides, say=say)


def as_experiment(config: Config, overrides: Changes = NO_CHANGES) -> Experiment:
    """Returns the experiment of a config, with overrides.

    Raises:
        UserError: the config cannot be read, or the result is inconsistent.
    """
    if not isinstance(config, Experiment):
        return resolve(config, overrides).experiment
    return changed(config, overrides)


def train(
    config: Config | None = None,
    model_directory: "str | Path | ModelPlace" = "",
    *,
    data: str | Path | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    overrides: Changes = NO_CHANGES,
    origins: Mapping[str, str] | None = None,
    profile: "ProfileSteps | None" = None,
    engine: Literal["local", "ray"] = "local",
    workers: int | tuple[int, int] | None = None,
    resources: Mapping[str, float] | None = None,
    tpu_slice: str | None = None,
    say: Say = _silent,
    on_warning: Say = _silent,
) -> "Outcome":
    """Trains into a model directory, or resumes its run.

    Args:
        config: the experiment; None: one for `data` and this machine.
        model_directory: folder of checkpoints, metrics and all other results, or a URL for them.
        data: a folder of annotated images, or of records with a label map, to train on.
        steps: length of the run; its schedule is stretched to it. None: as the experiment says.
        epochs: length in passes over the training records, in place of `steps`.
        minutes: time from the call to the last score, in place of `steps`: what fits is measured
            and fixed before the first step.
        overrides: changes of fields, such as `{"train.batch_size": 8}`.
        origins: source position by dotted field, for messages.
        profile: steps to trace.
        engine: `ray` trains on the cluster of `RAY_ADDRESS`, or on one that is started here.
        workers: of the engine `ray`: their number, or the least and the most.
        resources: what Ray gives each of them, such as `{"GPU": 8}`.
        tpu_slice: workers are the machines of slices of TPUs such as `v6e:4x4`.
        say: called with what was picked for `data` and why.
        on_warning: called if the run may need more memory than there is.

    Raises:
        UserError: experiment, data and directory do not fit together, or the run needs more memory
            than there is.
        FloatingPointError: the loss is not finite.
    """
    from stillbox.checking.memory_verdict import machine_for
    from stillbox.checking.time_limit import time_limit
    from stillbox.checkpoints.remote_directory import model_place
    from stillbox.devices.job import is_main_process
    from stillbox.scaling.ray_scale import find_workers

    began = time.monotonic()
    prepare_process()
    on_ray = find_workers(engine, workers, resources, tpu_slice)
    if not model_directory or (config is None and data is None):
        raise UserError(
            "training needs a model directory, and an experiment or data",
            where="stillbox.train",
            fix='stillbox.train(data="photos", model_directory="runs/first")',
        )
    limit = time_limit(
        minutes,
        began,
        steps=steps,
        epochs=epochs,
        overrides=overrides,
        is_planned=data is not None and (config is None or is_recipe(config)),
        on_ray=on_ray is not None,
    )
    # The workers of Ray write themselves.
    writes = on_ray is None and is_main_process()
    with model_place(model_directory, step="latest", writes=writes) as place:
        planned = _planned(
            config,
            data,
            place.folder,
            machine_for(on_ray),
            overrides,
            steps,
            epochs,
            minutes,
            say,
        )
        planned = replace(planned, origins=origins or planned.origins)
        return train_planned(
            planned,
            place,
            limit,
            on_ray=on_ray,
            profile=profile,
            hint=steps is None and epochs is None,
            say=say,
            on_warning=on_warning,
        )


def train_planned(
    planned: Resolved,
    place: "ModelPlace",
    limit: "TimeLimit | None" = None,
    *,
    on_ray: "Workers | None" = None,
    profile: "ProfileSteps | None" = None,
    hint: bool = False,
    say: Say = _silent,
    on_warning: Say = _silent,
) -> "Outcome":
    """Trains an experiment that is read or planned already; else as `train`.

    Args:
        planned: the experiment, of any length if there is a limit.
        place: the model directory.
        limit: of the time; None: there is none.
        on_ray: the workers of Ray; None: this process trains.
        profile: steps to trace.
        hint: say how many steps some numbers of minutes would be, without a limit.
        say: called with the length that fits into the time.
        on_warning: as of `train`.
    """
    from stillbox.checking.memory_verdict import refuse_shortage, this_machine
    from stillbox.scaling.ray_train import train_on_ray
    from stillbox.training.loop import train as run

    experiment, origins = planned.experiment, planned.origins
    if on_ray is not None:
        more = {"origins": origins, "profile": profile}
        return train_on_ray(run, experiment, place, on_ray, **more)
    if shortage := refuse_shortage(experiment, this_machine(), origins):
        on_warning(shortage.describe({}))
    if limit is not None:
        experiment = limit.fit(planned, place, say).experiment
    return run(experiment, place, origins, profile=profile, hint=hint and limit is None)


def _planned(
    config: Config | None,
    data: str | Path | None,
    folder: Path,
    machine: "Machine",
    overrides: Changes,
    steps: int | None,
    epochs: float | None,
    minutes: float | None,
    say: Say,
) -> Resolved:
    if data is None:
        from stillbox.training.length import set_length

        assert config is not None
        read = read_config(config, overrides)
        return set_length(read, overrides, steps=steps, epochs=epochs)
    from stillbox.checking.planning import plan_run

    return plan_run(
        config,
        data,
        folder,
        machine=machine,
        overrides=overrides,
        steps=steps,
        epochs=epochs,
        minutes=minutes,
        say=say,
    )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of a model."""

    result: "EvaluationResult"
    """Scores, curves, and the detections of every image."""
    report: Path
    """The page with scores, curves and pictures."""
    experiment: Experiment
    """Model and records that were scored."""
    source: str
    """Origin of the weights."""
    warnings: tuple[str, ...]
    """Possible faults of the records, the classes and the label map."""

    @property
    def summary(self) -> Mapping[str, float | None]:
        """The metrics by name, such as `AP` and `AP50`."""
        return self.result.scores.summary


def evaluate(
    source: "Config | ModelPlace",
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Changes = NO_CHANGES,
    runtime: str = "",
    output: str | Path | None = None,
    overwrite: bool = False,
    progress: "ImageProgress | None" = None,
    observer: "StepObserver | None" = None,
    say: Say = _silent,
) -> Evaluation:
    """Scores a model on the records of its experiment, and writes a report.

    Args:
        source: a model directory or its URL, the folder of an export, or a config for `weights`.
        weights: see `load`; likewise `step`, `overrides` and `runtime`.
        output: folder of the report; default: `evaluation` in the model directory, or where
            there is none in the working directory.
        overwrite: replace the report of another model. The report in the model directory itself
            is always replaced.
        progress: called after every batch.
        observer: observes the batches of a model; an export has none.
        say: called with a report on a weights file, and before the images are read.

    Raises:
        UserError: model, records and label map do not fit together, or the report would replace
            files of somebody else.
    """
    from stillbox.checkpoints.packed import results_folder
    from stillbox.evaluation.scoring import (
        open_evaluation,
        refuse_other_files,
        refuse_other_report,
    )

    prepare_process()
    with local_source(source, weights, step) as (local, url):
        output = output or ("evaluation" if url else None)
        directory = results_folder(local, weights)
        model = open_scored(
            local,
            weights=weights,
            step=step,
            overrides=overrides,
            runtime=runtime,
            observer=observer,
            say=say,
        ).copied_from(url, local)
        experiment, name = model.experiment, model.source
        folder = Path(output) if output else (directory or Path()) / "evaluation"
        with announcing(lambda: f"waiting for the folder {folder}"):
            # Before the scoring, which can take an hour.
            make_folder(folder, below=directory or folder)
            refuse_other_files(folder, experiment.evaluation)
            if not overwrite and (output or directory is None):
                refuse_other_report(folder, name)
        dataset = open_evaluation(experiment)
        images = len(dataset.source)
        limit = experiment.evaluation.max_examples or images
        say(f"{name}: scoring {count_text(min(limit, images), 'image')}")
        result = model.score(experiment, dataset, progress)
        page = _write_report(result, experiment, dataset, folder, name, directory, url, say)
    warnings = *result.unfound, *result.warnings, *dataset.source.problems.lines()
    if result.left_out:
        warnings += (f"not scored: {count_text(result.left_out, 'unusable record')}",)
    return Evaluation(
        result=result, report=page, experiment=experiment, source=name, warnings=warnings
    )


@dataclass(frozen=True, kw_only=True)
class ScoredModel:
    """A model that is ready to be scored, on the records of its experiment or on others."""

    experiment: Experiment
    """Model and records, with overrides."""
    source: str
    """Origin of the weights."""
    score: "Score"
    backend: "Callable[[], Backend]"
    """Makes what runs the model for predictions."""

    def copied_from(self, url: str, copy: Config) -> "ScoredModel":
        """Returns the model with the address that it was copied from in place of its copy's.

        An empty address leaves the model as it is.
        """
        return replace(self, source=self.source.replace(str(copy), url)) if url else self


def open_scored(
    source: Config,
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Changes = NO_CHANGES,
    runtime: str = "",
    observer: "StepObserver | None" = None,
    say: Say = _silent,
) -> ScoredModel:
    """Loads a checkpoint or an export to be scored; for the arguments see `evaluate`.

    Raises:
        UserError: there is no such model, or its weights do not fit.
    """
    if _is_export(source, runtime):
        loaded = load(source, weights=weights, step=step, runtime=runtime, say=say)
        return _scored_export(loaded.backend, overrides)
    model = load_model(source, weights=weights, step=step, overrides=overrides, say=say)
    return _scored_checkpoint(model, observer)


@contextmanager
def local_source(
    source: "Config | ModelPlace", weights: str | Path | None, step: Step
) -> Iterator[tuple[Config, str]]:
    """Yields a source on this machine, and the address that it is a copy of; empty: it is none.

    Records may lie in a model directory too: the copy stays until the context ends.
    """
    from stillbox.checkpoints.remote_directory import ModelPlace, model_place

    if isinstance(source, ModelPlace):
        yield source.folder, str(source)
    elif weights is None and not isinstance(source, Experiment) and url_of(source):
        with model_place(source, step=step) as place:
            yield place.folder, str(place)
    else:
        yield source, ""


def _write_report(
    result: "EvaluationResult",
    experiment: Experiment,
    dataset: "Dataset",
    folder: Path,
    source: str,
    directory: Path | None,
    url: str,
    say: Say,
) -> Path:
    """Writes the report into a folder, with the history and the runtimes of a model directory."""
    from stillbox.checkpoints.model_directory import is_model_directory
    from stillbox.evaluation.history import HISTORY, History, read_history
    from stillbox.evaluation.runtimes import find_runtimes
    from stillbox.evaluation.scoring import write_evaluation

    is_run = directory is not None and is_model_directory(directory)
    with announcing(lambda: f"writing the report into {folder}"):
        return write_evaluation(
            result,
            experiment,
            dataset,
            folder,
            source=source,
            history=read_history(directory / HISTORY) if directory else History(),
            run=Path(url or directory.resolve()).name if directory and is_run else "",
            runtimes=find_runtimes(directory, say) if directory else None,
        )


def _scored_export(backend: "Backend", overrides: Changes) -> ScoredModel:
    from stillbox.exporting.backend import ExportBackend
    from stillbox.predicting.scoring import score_backend

    assert isinstance(backend, ExportBackend)
    experiment = changed(backend.experiment, overrides)
    if experiment.model != backend.experiment.model:
        raise finished_export(backend.source)
    return ScoredModel(
        experiment=experiment,
        source=backend.source,
        score=partial(score_backend, backend),
        backend=lambda: backend,
    )


def _scored_checkpoint(model: "TrainedModel", observer: "StepObserver | None") -> ScoredModel:
    from stillbox.evaluation.program import score_program
    from stillbox.evaluation.scoring import score_dataset
    from stillbox.evaluation.step_observer import NO_OBSERVER
    from stillbox.predicting.checkpoint_backend import CheckpointBackend

    def score(
        experiment: Experiment, dataset: "Dataset", progress: "ImageProgress | None"
    ) -> "EvaluationResult":
        return score_dataset(
            score_program(experiment).bind(model.params, model.stats),
            experiment,
            dataset,
            progress,
            trained=model.label_map,
            observer=observer or NO_OBSERVER,
        )

    return ScoredModel(
        experiment=model.experiment,
        source=model.source,
        score=score,
        backend=lambda: CheckpointBackend(model),
    )


def _is_export(source: Config, runtime: str) -> bool:
    """Returns whether the source is an export; refuses a runtime for anything else."""
    if isinstance(source, str | Path) and is_export(Path(source)):
        return True
    if runtime:
        name = source.name if isinstance(source, Experiment) else source
        raise UserError(
            f"only an export runs in {'a measured runtime' if runtime == FASTEST else runtime}",
            where=str(name),
            fix=f"{Command('export', f'{name}', format='onnx')}, and give its folder",
        )
    return False


def export(
    source: Config,
    output: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    step: Step = "best",
    overrides: Changes = NO_CHANGES,
    images: Sequence[str | Path] = (),
    overwrite: bool = False,
    settings: ExportSettings | None = None,
    say: Say = _silent,
    **changes: object,
) -> "Exported":
    """Exports a model, runs the artefact, and compares it with the checkpoint.

    Args:
        source: a model directory or its URL, or a config for `weights`.
        output: folder of the artefact; default: `export/FORMAT` in the model directory, or where
            there is none in the working directory.
        weights: see `load`; likewise `step` and `overrides`.
        images: image files to compare on, and to calibrate on; default: records of the evaluation,
            or if there are none, drawn scenes, and for `quantize="int8"` records of training.
        overwrite: replace an existing export.
        settings: format, input and signature; default: the experiment's signature.
        say: called with a line for each stage.
        changes: fields of `ExportSettings`, such as `format="onnx"`.

    Raises:
        UserError: settings are wrong, the folder is taken, an extra is missing, the format cannot
            hold the model, or the artefact differs from the checkpoint. Nothing is left behind.
    """
    from stillbox.checkpoints.packed import results_folder
    from stillbox.exporting.export import check_free, export_model
    from stillbox.exporting.images import choose_images

    prepare_process()
    chosen = replace(settings or ExportSettings(), **cast("dict[str, Any]", changes)).checked()
    base = results_folder(source, weights)
    folder = Path(output) if output else (base or Path()) / "export" / chosen.format
    refuse_links(folder, below=base or folder)
    check_free(folder, overwrite=overwrite)
    model = load_model(source, weights=weights, step=step, overrides=overrides, say=say)
    if settings is None and "signature" not in changes and chosen.format != "tflite":
        chosen = replace(chosen, signature=model.experiment.export.signature)
    pixels = choose_images(model.experiment, images, chosen, say)
    return export_model(model, folder, chosen, pixels, overwrite=overwrite, say=say)
