"""Scores the evaluation set of an experiment."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import jax

from stillbox.boxes.structures import Batch, Detections
from stillbox.devices.announcing import StallReporter, waiting_for
from stillbox.devices.free_memory import refuse_shortage
from stillbox.devices.job import is_main_process
from stillbox.devices.process import input_threads
from stillbox.errors import UserError
from stillbox.evaluation.coco import encode_results
from stillbox.evaluation.evaluator import EvaluationResult, ImageProgress, evaluate
from stillbox.evaluation.gallery import (
    cut_out,
    draw_gallery,
    export_pictures,
    pictures_folder,
)
from stillbox.evaluation.ground_truth import check_agreement, read_annotations, read_truths
from stillbox.evaluation.history import History
from stillbox.evaluation.limit_audit import audit
from stillbox.evaluation.program import BoundDetect, score_batch_size
from stillbox.evaluation.report import REPORT, REPORT_NAMES, Report, write_report
from stillbox.evaluation.runtimes import RuntimeTable
from stillbox.evaluation.step_observer import NO_OBSERVER, StepObserver
from stillbox.evaluation.unfound import unfound_classes
from stillbox.evaluation.voc import VocRules
from stillbox.experiment import schema
from stillbox.experiment.values import differences
from stillbox.experiment.yaml_config import to_yaml
from stillbox.inputs.dataset import Dataset, open_dataset
from stillbox.inputs.loader import EvalLoader
from stillbox.object_storage import url_of
from stillbox.printing import count_text, printable_line
from stillbox.records.converted import PAGE_NAME
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.files import write_whole
from stillbox.records.foreign_files import read_json
from stillbox.records.label_map import ClassSlots, LabelMap, assign_slots
from stillbox.references import Parameter, Setting, worded

_METRICS, _DETECTIONS = "metrics.json", "detections.json"
# Reading the ids of all records takes as long as reading all images.
_RECORDS_CHECKED = 16
# Fields that define a score; all scores of a history share them.
_DECISIVE = (
    "data.evaluation.",
    "data.tiles",
    "evaluation.metrics",
    "evaluation.voc_",
    "evaluation.max_examples",
    "evaluation.use_ema",
    "evaluation.precision",
    "model.postprocessing.",
)


def changed_scoring(
    before: schema.Experiment, after: schema.Experiment, *, apart_from: tuple[str, ...] = ()
) -> list[str]:
    """Returns the fields that define a score and differ, each as `FIELD: OLD -> NEW`."""
    return [
        f"{path}: {old!r} -> {new!r}"
        for path, old, new in differences(before, after)
        if path.startswith(_DECISIVE) and not path.startswith(apart_from)
    ]


def open_evaluation(experiment: schema.Experiment) -> Dataset:
    """Opens the evaluation set.

    Raises:
        UserError: the experiment names none, or it cannot be used.
    """
    records = experiment.data.evaluation
    if not records.paths:
        problem = "the experiment names no records to score"
        fix = f"{Setting('data.evaluation.paths', ['data/val-*.tfrecord'])}"
        raise UserError(problem, where="data.evaluation.paths", fix=fix)
    with waiting_for("the evaluation's records, and their index"):
        # Scoring decodes whole images.
        data = dataclasses.replace(experiment.data, reduced_decoding=False)
        return open_dataset(data, records, experiment.model)


def score_dataset(
    detect: BoundDetect,
    experiment: schema.Experiment,
    dataset: Dataset,
    progress: ImageProgress | None = None,
    *,
    trained: LabelMap | None = None,
    observer: StepObserver = NO_OBSERVER,
) -> EvaluationResult:
    """Runs a detector over `dataset` and scores it.

    `detect` takes batches of `score_batch_size`. `trained` is the label map that the model was
    trained with, by default the evaluation set's.

    Raises:
        UserError: label map, model and annotations disagree, there is no image, or a batch needs
            more memory than there is.
    """
    settings = experiment.evaluation
    slots = check_label_maps(experiment.model, dataset, trained)
    _refuse_large_batches(experiment, len(dataset))
    loader = EvalLoader(
        dataset,
        batch_size=score_batch_size(experiment),
        workers=input_threads(experiment.data.workers),
        prefetch=experiment.data.prefetch,
        max_examples=settings.max_examples,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )

    def watched(batch: Batch) -> Detections:
        detections = detect(batch.images, batch.true_sizes)
        observer.dispatched(detections)
        return detections

    with StallReporter() as stalls:
        return score_batches(
            watched,
            observer.mark(stalls.over(loader, f"the next batch, from {dataset.source.where}")),
            loader.records,
            experiment,
            dataset,
            slots=slots,
            progress=progress,
        )


def _refuse_large_batches(experiment: schema.Experiment, images: int) -> None:
    """Refuses batches that exceed the memory of this machine, before one is made.

    Raises:
        UserError: their images, boxes and detections need more than is free.
    """
    model, records = experiment.model, experiment.data.evaluation
    height, width = model.network_size
    # Float32: pixels, four sides, class and weight of a box, and the same of a detection.
    row = 4 * (3 * height * width + 6 * records.max_boxes + 6 * model.max_detections)
    batch = score_batch_size(experiment)
    # One is made while another one is used.
    ahead = min(1 + experiment.data.prefetch, -(-images // batch))
    refuse_shortage(
        ahead * row * -(-batch // jax.process_count()),
        f"scoring {count_text(batch, 'image')} at a time",
        where="evaluation.batch_size",
        fix=f"{Setting('evaluation.batch_size', min(batch, schema.Evaluation().batch_size))}, or "
        "lower the size of model.resizer, max_boxes and the limits of nms",
    )


def score_batches(
    detect: Callable[[Batch], Detections],
    batches: Iterable[Batch],
    records: Sequence[int],
    experiment: schema.Experiment,
    dataset: Dataset,
    *,
    slots: ClassSlots,
    progress: ImageProgress | None = None,
) -> EvaluationResult:
    """Scores the detections in the batches of an evaluation set; see `evaluate`.

    Raises:
        UserError: label map, model and annotations disagree, or there is no image.
    """
    settings = experiment.evaluation
    result = evaluate(
        detect,
        batches,
        dataset.source,
        dataset.class_names,
        slots=slots,
        metrics=settings.metrics,
        rules=VocRules.of(settings),
        records=records,
        annotations=read_annotations(dataset.annotations) if dataset.annotations else None,
        tiles=dataset.tiles,
        progress=progress,
    )
    total, names = len(dataset), dataset.class_names
    limits = audit(experiment, result.truths, names, split="evaluation", total=total)
    return dataclasses.replace(
        result,
        limits=limits,
        unfound=tuple(unfound_classes(experiment, result.scores, result.truths, limits)),
        warnings=(*result.warnings, *cut_short(settings, dataset)),
    )


def check_label_maps(model: schema.Model, dataset: Dataset, trained: LabelMap | None) -> ClassSlots:
    """Compares the label maps of evaluation and training; returns the ids of the class indices.

    Raises:
        UserError: the two disagree, or the model's does not fit its classes.
    """
    slots = dataset.slots
    if trained is not None:
        slots = assign_slots(trained, model.num_classes, model.class_slots)
    names = None if trained is None else trained.names
    check_agreement((), dataset.class_names, slots=slots, other_names=names)
    return slots


def check_annotations(dataset: Dataset, slots: ClassSlots) -> None:
    """Compares the ground-truth file of an evaluation set, if any, with label map and records.

    Raises:
        UserError: there is no such file, or they do not belong together.
    """
    if not dataset.annotations:
        return
    annotations = read_annotations(dataset.annotations)
    some = range(min(_RECORDS_CHECKED, len(dataset.source)))
    check_agreement(
        tuple(read_truths(dataset.source, some, annotations).values()),
        dataset.class_names,
        slots=slots,
        other_names=annotations.class_names,
    )


def cut_short(settings: schema.Evaluation, dataset: Dataset) -> tuple[str, ...]:
    """Returns a warning if `max_examples` leaves images out."""
    images = len(dataset.source)
    if not 0 < settings.max_examples < images:
        return ()
    return (
        f"scored: the first {settings.max_examples} of {count_text(images, 'image')} "
        f"(evaluation.max_examples); {Setting('evaluation.max_examples', 0)} scores all",
    )


def refuse_other_files(folder: Path, settings: schema.Evaluation) -> None:
    """Refuses to write a report where it would replace files of somebody else."""
    names = _written_names(settings)
    refuse_others(folder, names, known=names if _read_weights(folder) else ())


def _written_names(settings: schema.Evaluation) -> list[str]:
    shown = [pictures_folder(settings)] if settings.pictures_directory else []
    return [_METRICS, _DETECTIONS, *REPORT_NAMES, *shown]


def _read_weights(folder: Path) -> str:
    """Returns the weights that the report in a folder is of; empty: there is no report."""
    with suppress(UserError):
        content = read_json(folder / _METRICS)
        return str(content.get("weights", "")) if isinstance(content, dict) else ""
    return ""


def refuse_other_report(folder: Path, source: str) -> None:
    """Refuses to write a report into a folder that holds the report of another model.

    `source`: as for `write_evaluation`; checkpoints of one directory are the same model.

    Raises:
        UserError: it has one.
    """
    before = _read_weights(folder)
    if before and _model_of(before) != _model_of(source):
        problem = f"the folder holds the report of {printable_line(before)}"
        fix = f"add {Parameter('overwrite')} to replace it, or give another {Parameter('output')}"
        raise UserError(problem, where=str(folder), fix=fix)


def _model_of(source: str) -> Path:
    return Path(source.rpartition(", step ")[0] or source).absolute()


def write_evaluation(
    result: EvaluationResult,
    experiment: schema.Experiment,
    dataset: Dataset,
    directory: Path,
    *,
    source: str,
    history: History,
    run: str = "",
    runtimes: RuntimeTable | None = None,
) -> Path:
    """Writes `metrics.json`, `detections.json`, pictures and the report, in the main process.

    `source` describes the origin of the weights. `history` belongs to the training run and may be
    empty; `run` is the name of the run, by default the experiment's. `runtimes` is the table of
    `stillbox benchmark`, if there is one. Returns the path of the report.
    """
    if not is_main_process():
        return directory / REPORT
    settings, scores = experiment.evaluation, result.scores
    written = _written_names(settings)
    claim_files(directory, written, known=written if _read_weights(directory) else ())
    names, all_metrics = scores.first.per_class, settings.all_metrics_per_category
    metrics = {
        "weights": source,
        "images": len(result.truths),
        "summary": scores.summary,
        "limits": result.limits.to_dict(),
        "unfound": [worded(sentence) for sentence in result.unfound],
        "per_class": {name: scores.class_numbers(name, all_metrics=all_metrics) for name in names},
        "object_detection_api": scores.original_names(
            per_category=settings.per_category, all_metrics=all_metrics
        ),
    }
    write_whole(directory / _METRICS, json.dumps(metrics, indent=1).encode())
    write_whole(directory / _DETECTIONS, encode_results(result.results))
    pictures = tuple(draw_gallery(result, dataset.source, dataset.class_names, settings))
    export_pictures(pictures, settings, directory)
    timings, images = result.timings, count_text(len(result.truths), "image")
    report = Report(
        title=run or experiment.name,
        subtitle=f"{experiment.name}: {source}, scored on {images}",
        scores=scores,
        analysis=result.analysis,
        history=history,
        all_class_metrics=all_metrics,
        pictures=pictures,
        cutouts=tuple(cut_out(result, dataset.source, dataset.class_names, settings.num_mistakes)),
        facts=_facts(experiment),
        config_text=to_yaml(experiment),
        timings={
            "loading and detecting": f"{timings.waiting + timings.detecting:.1f} s",
            "scoring": f"{timings.scoring:.1f} s",
            "speed": f"{timings.images_per_second:.1f} images/s",
        },
        warnings=(*result.unfound, *result.warnings),
        limits=result.limits,
        runtimes=runtimes,
        data_page=_data_page(experiment.data.train, directory),
    )
    return write_report(report, directory)


def _data_page(records: schema.Records, directory: Path) -> str:
    """Returns the path of the page beside records from a folder; empty: there is none."""
    for path in records.paths[:1]:
        page = Path(path).parent / PAGE_NAME
        if not url_of(path) and page.is_file():
            return Path(os.path.relpath(page.resolve(), directory.resolve())).as_posix()
    return ""


def _facts(experiment: schema.Experiment) -> dict[str, str]:
    model, train = experiment.model, experiment.train
    return {
        **model.describe(),
        "network input": model.resizer.kind,
        "classes": str(model.num_classes),
        "optimizer": train.optimizer.kind,
        "batch": str(train.batch_size),
        "steps": str(train.steps),
        "precision": train.precision,
    }
