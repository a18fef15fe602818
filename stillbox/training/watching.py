"""Scores the checkpoints of a run in another process as they appear, by one compiled program."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax

from stillbox.checkpoints.files import replace_durably
from stillbox.checkpoints.model_directory import (
    CheckpointChoice,
    ModelDirectory,
    is_model_directory,
)
from stillbox.checkpoints.trained import TrainedModel, load_trained
from stillbox.devices.job import broadcast, is_main_process
from stillbox.errors import UserError
from stillbox.evaluation.evaluator import EvaluationResult, ImageProgress
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.evaluation.program import DetectProgram, score_program
from stillbox.evaluation.scores import Scores, threshold_text
from stillbox.evaluation.scoring import (
    changed_scoring,
    open_evaluation,
    score_dataset,
    write_evaluation,
)
from stillbox.evaluation.step_observer import NO_OBSERVER, StepObserver
from stillbox.experiment import schema
from stillbox.experiment.values import differences
from stillbox.experiment.yaml_config import from_stored, store_paths, to_yaml
from stillbox.object_storage import url_of
from stillbox.printing import count_text
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.files import make_folder
from stillbox.references import Command, Parameter
from stillbox.textformat.yaml_tree import read_text_file
from stillbox.training.summaries import Summaries

_SETTINGS = "experiment.yaml"


def load_scored(
    experiment: schema.Experiment, directory: Path, step: CheckpointChoice
) -> TrainedModel:
    """Loads a checkpoint that an experiment scores.

    Raises:
        UserError: it is damaged or gone, or belongs to another model than the experiment.
    """
    settings = experiment.evaluation
    overrides = {
        "evaluation.use_ema": settings.use_ema,
        "evaluation.precision": settings.precision,
    }
    model = load_trained(directory, step=step, overrides=overrides)
    changed = [
        f"{path}: {old!r} -> {new!r}"
        for path, old, new in differences(model.experiment, experiment)
        if path.startswith("model.") and not path.startswith("model.postprocessing.")
    ]
    if changed:
        raise UserError(
            "the checkpoints belong to another model than the config:\n    "
            + "\n    ".join(changed),
            where=str(directory),
            fix="give the config that they are trained with",
        )
    return model


class CheckpointScorer:
    """Scores checkpoints of one run; the report of each is in `output/STEP`.

    Raises:
        UserError: the evaluation set cannot be used.
    """

    def __init__(
        self,
        experiment: schema.Experiment,
        directory: Path,
        output: Path,
        say: Callable[[str], None],
        progress: ImageProgress | None = None,
        observer: StepObserver = NO_OBSERVER,
    ) -> None:
        self._experiment, self._directory, self._output = experiment, directory, output
        self._say, self._progress, self._observer = say, progress, observer
        self._dataset = open_evaluation(experiment)

    @cached_property
    def _program(self) -> DetectProgram:
        """One program for all checkpoints: their arrays have the same shapes."""
        return score_program(self._experiment)

    def refuse_other_settings(self) -> None:
        """Refuses an output folder with scores of other settings.

        Raises:
            UserError: they come from other records, limits or metrics.
        """
        path = self._output / _SETTINGS
        if not path.is_file():
            return
        before = from_stored(
            read_text_file(path, fix=f"choose another {Parameter('output')}"), str(path)
        )
        changed = changed_scoring(before, self._stored())
        if changed:
            problem = "the folder holds scores of other settings:\n    " + "\n    ".join(changed)
            fix = "undo the changes, write into another folder, or remove this one"
            raise UserError(problem, where=str(self._output), fix=fix)

    def _stored(self) -> schema.Experiment:
        return store_paths(self._experiment, self._directory)

    def load(self, step: int) -> TrainedModel:
        """Loads a checkpoint; see `load_scored`."""
        return load_scored(self._experiment, self._directory, step)

    def score(self, model: TrainedModel, step: int, summaries: Summaries) -> Scores:
        """Scores a checkpoint, writes its report and records its scores.

        Raises:
            UserError: label map, model and annotations disagree.
        """
        result = score_dataset(
            self._program.bind(model.params, model.stats),
            self._experiment,
            self._dataset,
            self._progress,
            trained=model.label_map,
            observer=self._observer,
        )
        self._record(step, model, result, summaries)
        return result.scores

    def _record(
        self, step: int, model: TrainedModel, result: EvaluationResult, summaries: Summaries
    ) -> None:
        settings = self._experiment.evaluation
        page = write_evaluation(
            result,
            self._experiment,
            self._dataset,
            make_folder(self._output / str(step), below=self._output),
            source=model.source,
            history=read_history(self._directory / HISTORY),
            run=self._directory.resolve().name,
        )
        if is_main_process():
            replace_durably(self._output / _SETTINGS, to_yaml(self._stored()))
        summaries.evaluation(
            step,
            result.scores.summary,
            result.scores.original_names(
                per_category=settings.per_category, all_metrics=settings.all_metrics_per_category
            ),
        )
        for warning in result.warnings:
            self._say(f"warning: {warning}")
        best = threshold_text(result.analysis.overall)
        scored = f"{result.scores.headline()} on {count_text(len(result.truths), 'image')}"
        self._say(f"step {step}: {scored}; {best}; {page}")


OnScores = Callable[[int, Scores], None]

BESIDE = ("eval", "params.yaml")
"""Prefixes of the files that evaluation and the command lines put beside the checkpoints."""


@dataclass(frozen=True, kw_only=True)
class WatchPolicy:
    """Which checkpoints to score, and when to stop waiting for more."""

    once: bool = False
    """Score the newest checkpoint and end."""
    existing: bool = False
    """Score all existing checkpoints, oldest first, and end. Step 0 is skipped."""
    last_step: int = 0
    """End after the checkpoint of this step or a later one; 0: no such step."""
    timeout: float | None = None
    """End after so many seconds without a new checkpoint; None: no limit."""
    retries: int = -1
    """Checkpoints that may be removed while they are read; below 0: any number."""
    interval: float = 0.0
    """Least seconds between the starts of two scorings. Of the checkpoints in between only the
    newest is scored; 0 scores all."""
    poll: float = 5.0
    """Seconds between two listings of the folder."""


class CheckpointWatcher:
    """Scores checkpoints of a model directory, each into its own folder.

    The report of a step is in `output/STEP`; `output` also has a history and TensorBoard events.
    Steps of that history are not scored again.

    Args:
        experiment: what is scored and how; its model equals the trained one.
        checkpoints: a model directory, or the `checkpoints` folder in it. It need not exist yet.

    Raises:
        UserError: the evaluation set cannot be used, or the folder is not a model directory.
    """

    def __init__(
        self,
        experiment: schema.Experiment,
        checkpoints: Path,
        output: Path,
        patience: WatchPolicy,
        say: Callable[[str], None] = print,
        on_scores: OnScores = lambda step, scores: None,
        progress: ImageProgress | None = None,
        observer: StepObserver = NO_OBSERVER,
    ) -> None:
        self._output, self._patience = output, patience
        self._say, self._on_scores = say, on_scores
        self._directory = _model_directory(checkpoints)
        self._scorer = CheckpointScorer(
            experiment, self._directory, output, say, progress, observer
        )
        self._vanished = 0

    def run(self) -> tuple[int, ...]:
        """Scores checkpoints until `patience` ends; returns their steps.

        Raises:
            UserError: the output is the model directory, or has scores of other settings or files
                of somebody else.
            KeyboardInterrupt: everything scored so far is kept.
        """
        if jax.process_count() > 1 and not (self._patience.once or self._patience.existing):
            problem = "several processes cannot wait for checkpoints together"
            fix = "start one process; it uses all devices of its machine"
            raise UserError(problem, where=str(self._directory), fix=fix)
        if self._output.resolve() == self._directory.resolve():
            problem = "the model directory has the history of the training itself"
            raise UserError(problem, where=str(self._output), fix="write into another folder")
        make_folder(self._output, below=self._directory)
        self._scorer.refuse_other_settings()
        so_far = read_history(self._output / HISTORY).evaluations
        # Settings that fit and scores are of an older run into this folder.
        written = (_SETTINGS, HISTORY)
        former = written if so_far or (self._output / _SETTINGS).is_file() else ()
        refuse_others(self._output, written, known=former)
        if is_main_process():
            claim_files(self._output, written, known=former)
        known = broadcast([step for step, _ in so_far])
        scored: list[int] = []
        with closing(Summaries(self._output, from_step=max(known, default=0))) as summaries:
            try:
                for step in self._new_steps(known):
                    if self._score(step, summaries):
                        scored.append(step)
            except KeyboardInterrupt:
                self._say(
                    f"stopped after {count_text(len(scored), 'checkpoint')}; results in "
                    f"{self._output}"
                )
                raise
        self._say(f"{count_text(len(scored), 'checkpoint')} scored; results in {self._output}")
        return tuple(scored)

    def _new_steps(self, known: list[int]) -> Iterator[int]:
        """Yields the newest checkpoint, then every later one, until `patience` ends."""
        patience = self._patience
        if patience.existing:
            yield from self._existing_steps(known)
            return
        if patience.once:
            newest = broadcast(ModelDirectory.open(self._directory).checkpoint("latest").step)
            if newest in known:
                self._say(f"step {newest} is scored already: {self._output / str(newest)}")
            else:
                yield newest
            return
        # The history may have greater steps, of an older run.
        newest = max(self._steps(), default=-1)
        last = max((step for step in known if step <= newest), default=-1)
        while not 0 < patience.last_step <= last:
            steps = self._wait(last)
            if not steps:
                return
            # Only the newest of the checkpoints before the start is scored; later ones all are.
            for step in steps if last >= 0 and not patience.interval else steps[-1:]:
                began = time.monotonic()
                yield step
                last = step
            if patience.interval and not 0 < patience.last_step <= last:
                time.sleep(max(began + patience.interval - time.monotonic(), 0.0))

    def _existing_steps(self, known: list[int]) -> Iterator[int]:
        """Yields the step of every checkpoint that is not scored yet, but for step 0."""
        store, seen = ModelDirectory.open(self._directory), {0}
        # The list is read again after each scoring, because training may have written more.
        while steps := broadcast([step for step in store.steps() if step not in seen]):
            seen.update(steps)
            for step in steps:
                if step in known:
                    self._say(f"step {step} is scored already: {self._output / str(step)}")
                else:
                    yield step
        if seen == {0}:
            fix = "train first: the first checkpoint comes after train.checkpoint_every steps"
            raise UserError("there is no checkpoint to score", where=str(self._directory), fix=fix)

    def _wait(self, last: int) -> list[int]:
        """Returns the steps after `last` as soon as there are any; empty after the timeout."""
        began, said = time.monotonic(), False
        while True:
            steps = [step for step in self._steps() if step > last]
            if steps:
                return steps
            timeout = self._patience.timeout
            if timeout is not None and time.monotonic() - began >= timeout:
                self._say(f"no new checkpoint in {timeout:g} s")
                return []
            if not said:
                self._say(self._waiting_for(last))
                said = True
            time.sleep(self._patience.poll)

    def _waiting_for(self, last: int) -> str:
        after = f"a checkpoint after step {last}" if last >= 0 else "the first checkpoint"
        end = self._patience.last_step
        until = f"; step {end} is the last" if end else ""
        return f"waiting for {after} in {self._directory}{until}; Ctrl-C ends"

    def _steps(self) -> tuple[int, ...]:
        if not is_model_directory(self._directory):
            return ()
        return ModelDirectory.open(self._directory).steps()

    def _score(self, step: int, summaries: Summaries) -> bool:
        """Scores one checkpoint; False if training removed it before it was read."""
        try:
            model = self._scorer.load(step)
        except (UserError, OSError):
            if step in self._steps():
                raise
            self._vanished += 1
            if 0 <= self._patience.retries < self._vanished:
                raise
            self._say(f"step {step} was removed before it could be read")
            return False
        self._on_scores(step, self._scorer.score(model, step, summaries))
        return True


def _model_directory(path: Path) -> Path:
    """Returns the model directory of a path; it need not exist yet."""
    if url := url_of(path):
        problem = "new checkpoints are looked for in a folder of this machine"
        raise UserError(problem, where=url, fix=f"`stillbox evaluate {url}` scores the best one")
    if path.name == "checkpoints" and (is_model_directory(path.parent) or not path.exists()):
        return path.parent
    if is_model_directory(path):
        # A model directory may have checkpoints of TensorFlow beside its own.
        return path
    prefixes = sorted(str(entry).removesuffix(".index") for entry in path.glob("*.index"))
    if prefixes:
        problem = "these are checkpoints of TensorFlow, not of a run of stillbox"
        fix = f"score one of them: {Command('evaluate', 'CONFIG', weights=f'{prefixes[-1]}')}"
        raise UserError(problem, where=str(path), fix=fix)
    if path.exists() and not is_model_directory(path):
        # The folder may hold results of an evaluation that started before training.
        others = [entry for entry in path.glob("*") if not entry.name.startswith(BESIDE)]
        if others or not path.is_dir():
            ModelDirectory.open(path)  # raises, with what is wrong
    return path
