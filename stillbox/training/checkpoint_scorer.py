"""Scores checkpoints of a run, one after the other, by one compiled program."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from stillbox.checkpoints.files import replace_durably
from stillbox.checkpoints.trained import TrainedModel, load_trained
from stillbox.devices.job import is_main_process
from stillbox.errors import UserError
from stillbox.evaluation.evaluator import EvaluationResult, Progress
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.evaluation.program import DetectProgram, score_program
from stillbox.evaluation.scores import Scores
from stillbox.evaluation.scoring import open_evaluation, score_dataset, write_evaluation
from stillbox.evaluation.step_observer import NO_OBSERVER, StepObserver
from stillbox.evaluation.table import threshold_text
from stillbox.experiment import schema
from stillbox.experiment.own_paths import store_paths
from stillbox.experiment.values import differences
from stillbox.experiment.yaml_config import from_stored, to_yaml
from stillbox.printing import count_text
from stillbox.records.files import make_folder
from stillbox.textformat.text_file import read_text_file
from stillbox.training.summaries import Summaries

Say = Callable[[str], None]

_SETTINGS = "experiment.yaml"
# Fields that define a score; all scores of a history share them.
_DECISIVE = (
    "data.evaluation.",
    "evaluation.metrics",
    "evaluation.voc_",
    "evaluation.max_examples",
    "evaluation.use_ema",
    "evaluation.precision",
    "model.postprocessing.",
)


class CheckpointScorer:
    """Scores checkpoints of one run; the report of each is in `output/STEP`.

    Args:
        experiment: what is scored and how; its model equals the trained one.
        directory: the model directory.
        output: the folder of the results.
        say: called with each line of output.
        progress: called with the progress of a checkpoint.
        observer: observes every batch.

    Raises:
        UserError: the evaluation set cannot be used.
    """

    def __init__(
        self,
        experiment: schema.Experiment,
        directory: Path,
        output: Path,
        say: Say,
        progress: Progress | None = None,
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
        before = from_stored(read_text_file(path, fix="choose another --output"), str(path))
        changed = [
            f"{name}: {old!r} -> {new!r}"
            for name, old, new in differences(before, self._stored())
            if name.startswith(_DECISIVE)
        ]
        if changed:
            raise UserError(
                "the folder holds scores of other settings:\n    " + "\n    ".join(changed),
                where=str(self._output),
                fix="undo the changes, write into another folder, or remove this one",
            )

    def _stored(self) -> schema.Experiment:
        return store_paths(self._experiment, self._directory)

    def load(self, step: int) -> TrainedModel:
        """Loads a checkpoint.

        Raises:
            UserError: it is damaged or gone, or belongs to another model than the experiment.
        """
        settings = self._experiment.evaluation
        overrides = [
            f"evaluation.use_ema={str(settings.use_ema).lower()}",
            f"evaluation.precision={settings.precision}",
        ]
        model = load_trained(self._directory, step=step, overrides=overrides)
        changed = [
            f"{path}: {old!r} -> {new!r}"
            for path, old, new in differences(model.experiment, self._experiment)
            if path.startswith("model.") and not path.startswith("model.postprocessing.")
        ]
        if changed:
            raise UserError(
                "the checkpoints belong to another model than the config:\n    "
                + "\n    ".join(changed),
                where=str(self._directory),
                fix="give the config that they are trained with",
            )
        return model

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
                per_category=settings.per_category,
                all_metrics=settings.all_metrics_per_category,
            ),
        )
        for warning in result.warnings:
            self._say(f"warning: {warning}")
        best = threshold_text(result.analysis.overall)
        scored = f"{result.scores.headline()} on {count_text(len(result.truths), 'image')}"
        self._say(f"step {step}: {scored}; {best}; {page}")
