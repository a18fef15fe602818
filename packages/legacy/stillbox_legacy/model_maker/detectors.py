"""What the detectors of both Model Makers do: train, score, and export to TensorFlow Lite.

Everything goes through `stillbox.api` and the engine of exports. A run lies in a folder named by
its experiment: the same call resumes it, and another one begins anew.
"""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.api import evaluate, load_model, train
from stillbox.boxes.structures import Batch
from stillbox.checking.advice.training import settling_decays
from stillbox.checking.planning_weights import first_weights
from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.checkpoints.trained import TrainedModel
from stillbox.devices.announcing import say_aside
from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.evaluation.coco import SUMMARY_MEANINGS
from stillbox.evaluation.evaluator import EvaluationResult
from stillbox.evaluation.scoring import open_evaluation
from stillbox.experiment.resolve import changed
from stillbox.experiment.run_length import replicas_as_groups
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import NO_CHANGES, Changes, apply_changes, merged
from stillbox.experiment.yaml_config import to_yaml
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite.format import FILE
from stillbox.inputs.loader import EvalLoader
from stillbox.inputs.resize import resize_image
from stillbox.models.build import build_detector
from stillbox.models.detector import LossInputs
from stillbox.models.variables import Arrays, bind_detector, split_detector
from stillbox.predicting.backend import Pixels
from stillbox.printing import count_text
from stillbox.records.files import files_below, new_folder, write_whole
from stillbox.records.source import ExampleSource
from stillbox.untrusted import read_untrusted
from stillbox_legacy.model_maker.datasets import RecordSet
from stillbox_legacy.model_maker.quantization import Quantization

# Images that a float export is compared on.
_COMPARED = 4
# Names in both originals, in COCO's order.
_ORIGINAL = "AP AP50 AP75 APs APm APl ARmax1 ARmax10 ARmax100 ARs ARm ARl"
_METRICS = dict(zip(SUMMARY_MEANINGS, _ORIGINAL.split(), strict=True))
_NO_TRUTH = -1.0
_MOST_MODEL_BYTES = 2**31


def initial_weights(experiment: Experiment) -> tuple[Changes, str]:
    """Returns the changes that take weights on this machine, and what they hold.

    That is `detection`, `classification` or nothing. Says where weights can be had if none are
    here.
    """
    settings = first_weights(experiment, say_aside)
    fine_tune = apply_changes(experiment, settings).train.fine_tune
    return settings, fine_tune.scope if fine_tune.checkpoint else ""


def train_run(experiment: Experiment, folder: Path) -> Path:
    """Trains in a folder below `folder`, or resumes the same run in it, and returns its path.

    Batch norms of short runs get a faster decay than the original's.

    Raises:
        UserError: experiment and data do not fit together, or a signal stopped the run.
    """
    if changes := settling_decays(experiment):
        decays = ", ".join(f"{path}={decay:g}" for path, decay in changes.items())
        say_aside(f"batch norm settles within the run: {decays}")
        experiment = changed(experiment, changes)
    records = ExampleSource(experiment.data.train.paths).fingerprint()
    text = f"{to_yaml(experiment)}{records}"
    directory = folder / f"training-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    done = ModelDirectory.open(directory).latest_step() if is_model_directory(directory) else None
    if done == experiment.train.steps:
        say_aside(f"{directory}: trained before, with the same data and settings")
        return directory
    outcome = train(experiment, directory, say=say_aside, on_warning=say_aside)
    if outcome.interrupted:
        raise UserError(outcome.reason, where=str(directory), fix="the same call resumes the run")
    say_aside(f"{directory}: {outcome.reason}")
    return directory


def refuse_small(size: int, batch_size: int) -> None:
    """Refuses a batch that is larger than the data set.

    Raises:
        UserError: it is.
    """
    if size < batch_size:
        raise UserError(
            f"train_data has {count_text(size, 'image')}, fewer than a batch of {batch_size}",
            where="batch_size",
            fix=f"give batch_size={size} or less, or more images",
        )


def score(source: Path, data: RecordSet, changes: Changes = NO_CHANGES) -> EvaluationResult:
    """Scores the newest checkpoint of a run, or an export; writes a report beside it.

    Raises:
        UserError: the data and the detector have different classes.
    """
    evaluated = evaluate(
        source,
        step="latest",
        overrides=merged(data.changes("evaluation"), changes),
        output=source.parent / f"evaluation-of-{source.name}",
        overwrite=True,
        say=say_aside,
    )
    for warning in evaluated.warnings:
        say_aside(f"warning: {warning}")
    say_aside(f"report: {evaluated.report}")
    return evaluated.result


def coco_metrics(result: EvaluationResult) -> dict[str, float]:
    """Returns COCO's twelve numbers under the names of the originals; -1 without ground truth."""
    return {name: _number(result.scores.summary[key]) for key, name in _METRICS.items()}


def class_metrics(result: EvaluationResult, class_name: str) -> list[float]:
    """Returns COCO's twelve numbers of a class, in COCO's order."""
    numbers = result.scores.class_numbers(class_name, all_metrics=True)
    return [_number(numbers[key]) for key in SUMMARY_MEANINGS]


def _number(value: float | None) -> float:
    return _NO_TRUTH if value is None else float(value)


def mean_losses(directory: Path, data: RecordSet, batch_size: int) -> dict[str, float]:
    """Returns the means of the loss terms over the batches of a data set.

    Norms use their moving statistics. The last batch may be smaller.
    """
    prepare_process()
    model = _with_data(load_model(directory, step="latest"), data)
    dataset = open_evaluation(model.experiment)
    plain = replicas_as_groups(model.experiment.model, batch_size, 1)
    frozen = replace(plain, freeze_batch_norm=True)  # type: ignore[call-arg]
    graph, _, _ = split_detector(
        build_detector(frozen, quantization=model.experiment.train.quantization)
    )

    @jax.jit
    def terms(params: Arrays, stats: Arrays, batch: Batch) -> dict[str, jax.Array]:
        detector = bind_detector(graph, params, stats)
        state, key = detector.initial_loss_state(), jax.random.key(0)
        # Rounding of a trained quantisation has begun long ago.
        step = jnp.int32(2**30)
        loss = detector.loss(LossInputs(batch, state, step, key))
        return {**loss.terms, "regularization_loss": detector.regularization()}

    values_by_name: dict[str, list[float]] = {}
    for batch in EvalLoader(dataset, batch_size=batch_size, workers=0, prefetch=1):
        rows = int((np.asarray(batch.records) >= 0).sum())
        whole = jax.tree.map(lambda array, end=rows: array[:end], batch)
        for name, value in terms(model.params, model.stats, whole).items():
            values_by_name.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in values_by_name.items()}


def export_tflite(
    directory: Path,
    target: Path,
    how: Quantization,
    data: RecordSet | None,
    *,
    max_detections: int | None = None,
) -> None:
    """Writes the newest checkpoint of a run as a TFLite file with metadata and labels.

    The signature has the input `images` and the outputs `output_0` (count), `output_1` (scores),
    `output_2` (classes from 0) and `output_3` (boxes), as files of TFLite Model Maker. The export,
    compared with the checkpoint, is kept in the run.

    Args:
        directory: the run.
        target: the file; one that is there is replaced.
        how: quantisation and input.
        data: images to compare on; None: drawn ones are not needed, as `how` has some.
        max_detections: the most in an image; None: as in the experiment.

    Raises:
        UserError: the extra is not installed, or the file differs from the checkpoint.
    """
    settings = ExportSettings(
        format="tflite",
        input_type=how.input_type,
        input_name="images",
        output_names=("output_3", "output_2", "output_1", "output_0"),
        quantize=how.quantize,
        max_detections=max_detections,
    )
    prepare_process()
    model = load_model(directory, step="latest")
    images = _canvases(model, how.calibration or data, how.steps or _COMPARED)
    folder = directory.parent / "exports" / f"{directory.name}-{target.stem}"
    exported = export_model(model, folder, settings, images, overwrite=True, say=say_aside)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, read_untrusted(folder / FILE, most=_MOST_MODEL_BYTES))
    say_aside(f"{target}: {exported.verification.render()}")


def find_export(directory: Path, file: Path) -> Path:
    """Returns the export that a TFLite file is a copy of.

    Raises:
        UserError: none has its bytes.
    """
    content = read_untrusted(file, most=_MOST_MODEL_BYTES)
    for folder in sorted((directory.parent / "exports").glob(f"{directory.name}-*")):
        if read_untrusted(folder / FILE, most=_MOST_MODEL_BYTES) == content:
            return folder
    raise UserError(
        "this is not what this detector was exported to",
        where=str(file),
        fix="export again, and evaluate the file that is written",
    )


def export_saved_model(directory: Path, target: Path) -> None:
    """Writes the newest checkpoint of a run as a SavedModel; one that is there is replaced."""
    from stillbox.api import export

    folder = directory.parent / "exports" / f"saved_model-{directory.name}"
    settings = ExportSettings(format="saved_model", input_name="images")
    export(
        directory,
        folder,
        step="latest",
        settings=settings,
        overwrite=True,
        say=say_aside,
    )
    if target.is_symlink() or (target.exists() and not (target / "saved_model.pb").is_file()):
        raise UserError(
            "this is not a SavedModel, and is not replaced", where=str(target), fix="move it away"
        )
    with new_folder(target, written=_of_saved_model) as fresh:
        shutil.copytree(folder / "saved_model", fresh, dirs_exist_ok=True)


def _of_saved_model(folder: Path) -> list[str]:
    """Returns the files that belong to a SavedModel."""
    names = ("saved_model.pb", "fingerprint.pb", "variables/", "assets/")
    return [name for name in files_below(folder) if name.startswith(names)]


def _with_data(model: TrainedModel, data: RecordSet) -> TrainedModel:
    experiment = changed(model.experiment, data.changes("evaluation"))
    return replace(model, experiment=experiment)


def _canvases(model: TrainedModel, data: RecordSet | None, most: int) -> Sequence[Pixels]:
    """Returns the first images of a data set as network inputs, in whole numbers."""
    if data is None:
        return []
    described = _with_data(model, data).experiment
    dataset = open_evaluation(described)
    resizer = described.model.resizer
    return [
        np.rint(resize_image(dataset.image(record), resizer)[0]).astype(np.uint8)
        for record in range(min(most, len(dataset)))
    ]
