"""`stillbox.compare`: two models on the same records, with their speed and size."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stillbox.api import Config, Say, ScoredModel, local_source, open_scored
from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.evaluation.comparison import SAMPLES, Comparison
from stillbox.experiment.schema import Data, Evaluation, Experiment
from stillbox.experiment.updating import NO_CHANGES, Changes
from stillbox.predicting.backend import Pixels
from stillbox.predicting.predictor import Predictor
from stillbox.printing import json_text
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.files import make_folder, write_whole
from stillbox.references import Parameter

if TYPE_CHECKING:
    from stillbox.evaluation.comparison import ModelFigures
    from stillbox.evaluation.evaluator import EvaluationResult, ImageProgress
    from stillbox.inputs.dataset import Dataset

OUTPUT = Path("comparison")
PAGE, FIGURES, RECORDS = "comparison.html", "comparison.json", "records"
# The models take turns, so that other programs on this machine slow either as much.
_TIMED, _ROUNDS, _MOST_SECONDS = 8, 3, 20.0


class Compared(NamedTuple):
    """A finished comparison."""

    comparison: Comparison
    page: Path


def compare(
    first: Config,
    second: Config,
    *,
    data: str | Path | None = None,
    overrides: Changes = NO_CHANGES,
    output: str | Path = OUTPUT,
    samples: int = SAMPLES,
    progress: "ImageProgress | None" = None,
    on_image: Callable[[str, int, int], None] = lambda stage, done, total: None,
    say: Say = lambda line: None,
) -> Compared:
    """Scores two models on the same images, and writes a page with what differs.

    Args:
        first: a model directory or its URL, one of its checkpoints, a packed model, or the folder
            of an export.
        second: another one of these.
        data: a folder of annotated images, or of records with a label map; its validation images
            are scored, or all if there are none. None: the evaluation set of the first model.
        overrides: changes of both experiments, such as `{"evaluation.max_examples": 500}`.
        output: folder of the page, its figures as JSON, and records of `data`.
        samples: draws of the images for an interval; 0: no intervals.
        progress: called after every batch of either model.
        on_image: progress of the conversion of `data`.
        say: called with a line before each part of the work.

    Raises:
        UserError: there is no such model, or both cannot be scored on the same images.
    """
    from stillbox.checking.planning_records import to_score

    prepare_process()
    folder = Path(output)
    refuse_others(folder, (PAGE, FIGURES, RECORDS))
    with ExitStack() as stack:
        opened = [_open(source, overrides, stack, say) for source in (first, second)]
        make_folder(folder, below=folder)
        claim_files(folder, (PAGE, FIGURES, RECORDS))
        shared = opened[0].experiment
        if data is not None:
            shared = to_score(shared, Path(data), folder / RECORDS, on_image, say)
        models = [_with_records(model, shared) for model in opened]
        return _compare(models, folder, samples, progress, say)


def _open(source: Config, overrides: Changes, stack: ExitStack, say: Say) -> ScoredModel:
    """Loads a model; a copy of a remote one stays until the stack is closed."""
    local, url = stack.enter_context(local_source(source, None, "best"))
    return open_scored(local, overrides=overrides, say=say).copied_from(url, local)


def _compare(
    models: Sequence[ScoredModel],
    folder: Path,
    samples: int,
    progress: "ImageProgress | None",
    say: Say,
) -> Compared:
    from stillbox.evaluation.comparison import compare_results
    from stillbox.evaluation.comparison_page import comparison_page, draw_differences

    datasets, results = zip(*(_scored(model, progress, say) for model in models), strict=True)
    _refuse_other_images(models, results)
    say("measuring the time of an image")
    figures = _figures(models, datasets[0])
    say(f"comparing, with {samples} draws of the images")
    before, after = results
    detected = (before.results, after.results)
    names, settings = before.class_names, models[0].experiment.evaluation
    comparison = compare_results(before.truths, detected, names, figures, samples=samples)
    pictures = draw_differences(comparison, results, datasets[0].source, names, settings)
    page = write_whole(folder / PAGE, comparison_page(comparison, pictures).encode())
    write_whole(folder / FIGURES, json_text(comparison.to_dict()).encode())
    return Compared(comparison, page)


def _with_records(model: ScoredModel, shared: Experiment) -> ScoredModel:
    """Returns a model that is scored on the records of another experiment, and by its rules."""
    theirs, mine = shared.data, model.experiment
    data: Data = replace(
        mine.data,
        evaluation=theirs.evaluation,
        bad_records=theirs.bad_records,
        bad_boxes=theirs.bad_boxes,
    )
    evaluation: Evaluation = replace(
        mine.evaluation, metrics=("coco",), max_examples=shared.evaluation.max_examples
    )
    return replace(model, experiment=replace(mine, data=data, evaluation=evaluation))


def _scored(
    model: ScoredModel, progress: "ImageProgress | None", say: Say
) -> "tuple[Dataset, EvaluationResult]":
    from stillbox.evaluation.scoring import open_evaluation

    say(f"{model.source}: scoring")
    dataset = open_evaluation(model.experiment)
    try:
        return dataset, model.score(model.experiment, dataset, progress)
    except UserError as error:
        # Which of the two models it is about.
        where = ": ".join(filter(None, (model.source, error.where)))
        raise UserError(error.what, where=where, fix=error.fix) from error


def _refuse_other_images(
    models: Sequence[ScoredModel], results: "Sequence[EvaluationResult]"
) -> None:
    before, after = (result.records for result in results)
    if before != after:
        only = sorted(set(before) ^ set(after))
        raise UserError(
            f"{len(only)} images can be scored with one of the models only, that of record "
            f"{only[0]} among them",
            where=models[1].source,
            fix=f"give others with {Parameter('data')}",
        )


def _figures(
    models: Sequence[ScoredModel], dataset: "Dataset"
) -> "tuple[ModelFigures, ModelFigures]":
    from stillbox.checking.operations import forward_operations
    from stillbox.evaluation.comparison import ModelFigures
    from stillbox.exporting.benchmarking.tasks import model_bytes
    from stillbox.exporting.images import spread_images

    predictors = [Predictor(model.backend()) for model in models]
    first, second = (
        ModelFigures(
            source=model.source,
            bytes=model_bytes(predictor.backend),
            gflop=forward_operations(model.experiment.model) / 1e9,
            milliseconds=1000 * seconds,
        )
        for model, predictor, seconds in zip(
            models,
            predictors,
            _median_seconds(predictors, spread_images(dataset, _TIMED)),
            strict=True,
        )
    )
    return first, second


def _median_seconds(predictors: Sequence[Predictor], images: Sequence[Pixels]) -> list[float]:
    """Returns the median time of each predictor from a decoded image to its detections."""
    for predictor in predictors:
        # Runtimes that take any size prepare each new one.
        for image in images:
            predictor.predict(image)
    taken: list[list[float]] = [[] for _ in predictors]
    end = time.perf_counter() + _MOST_SECONDS
    for image in [*images] * _ROUNDS:
        for times, predictor in zip(taken, predictors, strict=True):
            began = time.perf_counter()
            predictor.predict(image)
            times.append(time.perf_counter() - began)
        if time.perf_counter() > end:
            break
    return [float(np.median(times)) for times in taken]
