"""Scores the checkpoints of a run that goes on elsewhere, each one as it comes."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import jax

from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.devices.job import broadcast
from stillbox.errors import UserError
from stillbox.evaluation.evaluator import Progress
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.evaluation.scores import Scores
from stillbox.evaluation.watch import UNWATCHED, StepWatch
from stillbox.experiment import schema
from stillbox.training.checkpoint_scorer import CheckpointScorer, Say
from stillbox.training.summaries import Summaries

OnScores = Callable[[int, Scores], None]
"""Called with a step and its scores."""

BESIDE = ("eval", "params.yaml")
"""What names of results, and of what front doors keep, begin with beside the checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When to stop waiting for checkpoints."""

    once: bool = False
    """Score the newest checkpoint and end."""
    existing: bool = False
    """Score all checkpoints that there are, oldest first, and end (SSD ResNet-34 fact sheet 1.4).
    That of step 0 is passed over."""
    last_step: int = 0
    """End after the checkpoint of this step or a later one; 0: there is no last one."""
    timeout: float | None = None
    """End after so many seconds without a new checkpoint; None waits on."""
    retries: int = -1
    """Checkpoints that may be removed while they are read; below 0: any number."""
    interval: float = 0.0
    """Seconds at least between the beginnings of two scorings. What comes in between is passed over
    for the newest; 0 scores all."""
    poll: float = 5.0
    """Seconds between two looks at the folder."""


class CheckpointWatcher:
    """Scores checkpoints of a model directory and keeps every result in a folder of its own.

    Each step's report goes into `output/STEP`; `output` also has a history and TensorBoard events.
    What is in that history is not scored again.

    Args:
        experiment: says what is scored and how; the model has to be the one that is trained.
        checkpoints: a model directory, or the `checkpoints` folder in it. It need not exist yet.
        output: where results go.
        patience: when to end.
        say: told every line that a person should see.
        on_scores: given step and scores of each checkpoint when it is scored.
        progress: told how far a checkpoint is.
        watch: told of every batch, of all checkpoints.

    Raises:
        UserError: the evaluation set cannot be used, or this is no folder of ours.
    """

    def __init__(
        self,
        experiment: schema.Experiment,
        checkpoints: Path,
        output: Path,
        patience: Patience,
        say: Say = print,
        on_scores: OnScores = lambda step, scores: None,
        progress: Progress | None = None,
        watch: StepWatch = UNWATCHED,
    ) -> None:
        self._output, self._patience = output, patience
        self._say, self._on_scores = say, on_scores
        self._directory = _model_directory(checkpoints)
        self._scorer = CheckpointScorer(experiment, self._directory, output, say, progress, watch)
        self._vanished = 0

    def run(self) -> tuple[int, ...]:
        """Scores checkpoints until there is no more to wait for; returns their steps.

        Raises:
            UserError: there is no checkpoint and none is waited for, one belongs to another model,
                label map, model and annotations disagree, or the output folder holds results of
                other settings.
            KeyboardInterrupt: a person has seen enough; everything scored so far is kept.
        """
        if jax.process_count() > 1 and not (self._patience.once or self._patience.existing):
            raise UserError(
                "several processes cannot wait for checkpoints together",
                where=str(self._directory),
                fix="start one process; it uses all devices of its machine",
            )
        self._output.mkdir(parents=True, exist_ok=True)
        self._scorer.refuse_other_settings()
        so_far = read_history(self._output / HISTORY).evaluations
        known = broadcast([step for step, _ in so_far])
        scored: list[int] = []
        with closing(Summaries(self._output, from_step=max(known, default=0))) as summaries:
            try:
                for step in self._new_steps(known):
                    if self._score(step, summaries):
                        scored.append(step)
            except KeyboardInterrupt:
                self._say(f"stopped after {_checkpoints(len(scored))}; results in {self._output}")
                raise
        self._say(f"{_checkpoints(len(scored))} scored; results in {self._output}")
        return tuple(scored)

    def _new_steps(self, known: list[int]) -> Iterator[int]:
        """Yields the newest checkpoint and then every later one, until patience ends."""
        patience, last = self._patience, max(known, default=-1)
        if patience.existing:
            yield from self._existing_steps(known)
            return
        if patience.once:
            newest = broadcast(ModelDirectory.open(self._directory).checkpoint("latest").step)
            if newest <= last:
                self._say(f"step {newest} is scored already: {self._output / str(newest)}")
            else:
                yield newest
            return
        while not 0 < patience.last_step <= last:
            steps = self._wait(last)
            if not steps:
                return
            # Whoever comes late looks at the newest only; from then on nothing is left out.
            for step in steps if last >= 0 and not patience.interval else steps[-1:]:
                began = time.monotonic()
                yield step
                last = step
            if patience.interval and not 0 < patience.last_step <= last:
                time.sleep(max(began + patience.interval - time.monotonic(), 0.0))

    def _existing_steps(self, known: list[int]) -> Iterator[int]:
        """Yields every checkpoint that has learnt something and is not scored yet."""
        store, looked_at = ModelDirectory.open(self._directory), {0}
        # Again, because training may have gone on meanwhile.
        while steps := broadcast([step for step in store.steps() if step not in looked_at]):
            looked_at.update(steps)
            for step in steps:
                if step in known:
                    self._say(f"step {step} is scored already: {self._output / str(step)}")
                else:
                    yield step
        if looked_at == {0}:
            raise UserError(
                "there is no checkpoint to score",
                where=str(self._directory),
                fix="train first: the first checkpoint comes after train.checkpoint_every steps",
            )

    def _wait(self, last: int) -> list[int]:
        """Returns the steps after `last` as soon as there are some; none: time is up."""
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
        """Scores one checkpoint; False where training removed it before it could be read."""
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
    """Returns the model directory that a path means; one that does not exist may yet come."""
    if path.name == "checkpoints" and (is_model_directory(path.parent) or not path.exists()):
        return path.parent
    prefixes = sorted(str(entry).removesuffix(".index") for entry in path.glob("*.index"))
    if prefixes:
        raise UserError(
            "these are checkpoints of TensorFlow, not of a run of stillbox",
            where=str(path),
            fix=f"score one of them: stillbox evaluate CONFIG --weights {prefixes[-1]}",
        )
    if path.exists() and not is_model_directory(path):
        # Earlier results of ours may lie where training has yet to begin.
        others = [entry for entry in path.glob("*") if not entry.name.startswith(BESIDE)]
        if others or not path.is_dir():
            ModelDirectory.open(path)  # says what is wrong with it
    return path


def _checkpoints(count: int) -> str:
    return "1 checkpoint" if count == 1 else f"{count} checkpoints"
