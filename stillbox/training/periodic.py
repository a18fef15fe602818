"""Evaluation during training: scores, the best checkpoint, early stopping."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from math import inf
from pathlib import Path

import jax
import numpy as np

from stillbox.boxes.structures import Batch
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.devices.announcing import announcing
from stillbox.devices.job import is_main_process, local_rows
from stillbox.evaluation.evaluator import EvaluationResult
from stillbox.evaluation.gallery import draw_gallery, export_pictures, pictures_folder
from stillbox.evaluation.pictures import Mark, class_color, contact_sheet, draw_marks
from stillbox.evaluation.program import DetectProgram, score_mesh, score_program
from stillbox.evaluation.scoring import (
    changed_scoring,
    check_annotations,
    check_label_maps,
    cut_short,
    open_evaluation,
    score_dataset,
)
from stillbox.experiment import schema
from stillbox.experiment.yaml_config import store_paths
from stillbox.inputs.channels import for_people
from stillbox.inputs.dataset import Dataset
from stillbox.printing import count_text
from stillbox.records.file_list import claim_files
from stillbox.records.label_map import LabelMap
from stillbox.training.observing import Moment, RunContext, RunObserver
from stillbox.training.state import TrainState, arrays_to_score
from stillbox.training.summaries import Summaries

SummaryScores = Mapping[str, float | None]

# Few, so that the event file stays small.
_PICTURES = 3

_EVALUATING = "evaluating"
# What a checkpoint stores of the records.
_FILES = "evaluation_files"
# Records may move to another folder, and scores by other metrics have other names.
_MAY_CHANGE = ("data.evaluation.paths", "data.evaluation.label_map", "evaluation.metrics")


class PeriodicEvaluation:
    """Scores the model at the steps of `train.evaluate_every`; without records it does nothing.

    Evaluation settings and records are validated at construction, before the first step.

    Args:
        last_step: step that is always scored; None if training has no last step.

    Raises:
        UserError: the records cannot be scored, or have other classes than the training records.
    """

    def __init__(
        self, experiment: schema.Experiment, label_map: LabelMap, last_step: int | None
    ) -> None:
        self._experiment, self._label_map, self._last_step = experiment, label_map, last_step
        self._settings = experiment.evaluation
        self._dataset = open_evaluation(experiment) if experiment.data.evaluation.paths else None
        if self._dataset is not None:
            score_mesh(experiment)
            slots = check_label_maps(experiment.model, self._dataset, label_map)
            check_annotations(self._dataset, slots)
        self.scores: SummaryScores | None = None
        """Scores of the last evaluation; None: there was none."""
        self.unfound: tuple[str, ...] = ()
        """A sentence for each class that the last evaluation had no AP of."""
        self._done = 0
        self._cache_described = False

    @property
    def identity(self) -> dict[str, str]:
        """What a checkpoint stores of the records, for the run that resumes from it."""
        return {} if self._dataset is None else {_FILES: self._dataset.source.fingerprint()}

    @cached_property
    def _program(self) -> DetectProgram:
        return score_program(self._experiment)

    def due(self, step: int) -> bool:
        """Whether the model is to be scored after `step` updates."""
        every = self._experiment.train.evaluate_every
        if self._dataset is None or step == 0:
            return False
        if step == self._last_step:
            return True
        # One evaluation is kept for the last step.
        most = self._settings.max_evaluations - (self._last_step is not None)
        spent = self._settings.max_evaluations and self._done >= most
        return bool(every and step % every == 0 and not spent)

    def catch_up(self, step: int, state: TrainState, context: RunContext) -> None:
        """Scores the checkpoint resumed from, if the run was killed before it was scored.

        Scores that the next ones cannot be compared with are set aside first.
        """
        summaries = context.summaries
        if self._settings.pictures_directory and is_main_process():
            shown = [pictures_folder(self._settings)]
            claim_files(context.directory.path, shown, known=shown if step else ())
        if summaries.evaluations() and (changed := self._changed_since(step, context.directory)):
            aside = summaries.set_evaluations_aside()
            problem = f"later scores are not comparable with those so far, which are now in {aside}"
            context.progress.say("\n    ".join([f"warning: {problem}:", *changed]))
        done = dict(summaries.evaluations())
        self._done = len(done)
        self.scores = done.get(step)
        if step not in done and self.due(step):
            self.run(step, state, context)

    def _changed_since(self, step: int, directory: ModelDirectory) -> list[str]:
        """Returns what has changed in the scoring since a checkpoint was written."""
        checkpoint, identity = directory.checkpoint(step), self.identity
        before, now = (
            store_paths(experiment, directory.path)
            for experiment in (checkpoint.read_experiment(), self._experiment)
        )
        changed = changed_scoring(before, now, apart_from=_MAY_CHANGE)
        # Older checkpoints do not hold it.
        if identity and checkpoint.metadata.get(_FILES, identity[_FILES]) != identity[_FILES]:
            changed.append("the evaluation records are in files of other names or sizes")
        return changed

    def run(self, step: int, state: TrainState, context: RunContext) -> None:
        """Scores `state`, records the scores and marks the checkpoint if it is the best.

        Raises:
            RunInterrupted: a signal came while it was scored; the next run begins with it.
        """
        assert self._dataset is not None
        directory, summaries, progress, stop = context
        self._done += 1
        progress.doing(_EVALUATING)
        so_far = ""

        def update(done: int, total: int) -> None:
            nonlocal so_far
            so_far = f", {done} of {count_text(total, 'image')}"

        arrays = arrays_to_score(state, use_ema=self._settings.use_ema)
        # The loop forbids implicit transfers; scoring needs them.
        # If one process of a job left, the others would wait for it.
        interruptible = stop.ends(_EVALUATING) if jax.process_count() == 1 else nullcontext()
        with jax.transfer_guard("allow"), interruptible, announcing(lambda: _EVALUATING + so_far):
            result = score_dataset(
                self._program.bind(*arrays),
                self._experiment,
                self._dataset,
                progress=update,
                trained=self._label_map,
            )
        scores, earlier = result.scores.summary, dict(summaries.evaluations())
        settings = self._settings
        summaries.evaluation(
            step,
            scores,
            result.scores.original_names(
                per_category=settings.per_category, all_metrics=settings.all_metrics_per_category
            ),
        )
        if is_main_process():
            for number, picture in enumerate(self._pictures(result, directory.path)):
                summaries.image(step, f"eval_side_by_side_{number}", picture)
        self._mark_best(step, scores, directory, earlier)
        progress.say(
            f"step {step}: {result.scores.headline()} on {count_text(len(result.truths), 'image')}"
        )
        for sentence in cut_short(settings, self._dataset):
            progress.say(f"warning: {sentence}")
        if self._dataset.cache is not None and not self._cache_described:
            progress.say(f"of the evaluation's data: {self._dataset.cache.describe()}")
            self._cache_described = True
        self.scores, self.unfound = scores, result.unfound

    def exhausted(self, summaries: Summaries) -> str:
        """Returns why early stopping ends the run now; empty if it does not."""
        stopping = self._experiment.train.early_stopping
        if stopping is None:
            return ""
        metric, best, since = self._settings.best_metric, -inf, 0
        for step, scores in summaries.evaluations():
            if metric not in scores:  # the run had other metrics then
                continue
            value = _value(scores, metric)
            if stopping.target is not None and value >= stopping.target:
                return f"{metric} {value:.4f} at step {step} reaches the target {stopping.target:g}"
            if value > best + stopping.min_delta:
                best, since = value, 0
            else:
                since += 1
        if not stopping.patience or since < stopping.patience:
            return ""
        return f"{metric} has not risen above {best:.4f} in {count_text(since, 'evaluation')}"

    def _mark_best(
        self,
        step: int,
        scores: SummaryScores,
        directory: ModelDirectory,
        earlier: Mapping[int, SummaryScores],
    ) -> None:
        metric, best = self._settings.best_metric, directory.best()
        value = scores.get(metric)
        if value is None:  # without such objects all checkpoints are equal
            return
        # A score that is not in the history any more is of other settings.
        if best is None or best.metric != metric or best.step not in earlier or value > best.value:
            directory.mark_best(step, metric, value)

    def _pictures(self, result: EvaluationResult, folder: Path) -> Iterator[np.ndarray]:
        """Yields the pictures for TensorBoard, and exports the pictures of the settings."""
        assert self._dataset is not None
        source, names = self._dataset.source, self._dataset.class_names
        if self._settings.pictures_directory:
            drawn = draw_gallery(result, source, names, self._settings)
            export_pictures(drawn, self._settings, folder)
        count = min(_PICTURES, self._settings.num_visualizations)
        for shown in draw_gallery(result, source, names, self._settings, count=count):
            yield shown.picture


class EvaluatedSteps(RunObserver):
    """Scores the steps that an evaluation is due after, and ends the run where it has converged.

    Args:
        paused: entered while a step is scored, which is no part of the training time.
    """

    def __init__(
        self,
        evaluation: PeriodicEvaluation,
        context: RunContext,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._evaluation, self._context, self._paused = evaluation, context, paused

    def due(self, step: int) -> bool:
        """Returns whether the model is scored after a step."""
        return self._evaluation.due(step)

    def after(self, moment: Moment) -> str:
        """Scores the model, if it is due; returns why early stopping ends the run."""
        if not self.due(moment.step):
            return ""
        with self._paused():
            self._evaluation.run(moment.step, moment.state, self._context)
        why = self._evaluation.exhausted(self._context.summaries)
        return f"stopped early: {why}" if why else ""


def draw_inputs(batch: Batch, dataset: Dataset, *, limit: int = 8) -> np.ndarray:
    """Returns a contact sheet of at most `limit` images of a batch, with their boxes."""
    host = jax.tree.map(local_rows, batch)
    height, width = host.images.shape[1:3]
    scale = np.array([height, width, height, width], np.float64)
    class_ids = dataset.slots.id_of(host.classes)
    pictures = []
    for row in range(min(limit, len(host.images))):
        marks = [
            Mark(
                box=tuple(box * scale),
                text=dataset.label_map.name_of(int(class_id)),
                color=class_color(int(class_id)),
                dashed=False,
            )
            for box, class_id, weight in zip(
                host.boxes[row], class_ids[row], host.weights[row], strict=True
            )
            if weight > 0
        ]
        pictures.append(draw_marks(for_people(np.asarray(host.images[row])), marks))
    return contact_sheet(pictures)


def _value(scores: SummaryScores, metric: str) -> float:
    value = scores.get(metric)
    return -inf if value is None else value
