"""The log of a run: a history in JSON lines, and loggers such as TensorBoard."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np

from stillbox.checkpoints.files import blamed, replace_durably
from stillbox.devices.announcing import StallReporter, waiting_for
from stillbox.devices.job import broadcast, is_main_process
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment import schema
from stillbox.records.files import append_file
from stillbox.training.loggers import Logger, open_loggers


class Summaries:
    """Writes metrics of a run into its model directory.

    Early stopping, the choice of the best checkpoint and the report read the history, so a resumed
    run first truncates it to its first step. Of several processes only the first writes; all have
    the scores so far.

    Args:
        from_step: updates done so far.
        experiment: names the loggers, and is logged; None: TensorBoard alone.
        loggers: more of them.

    Raises:
        UserError: a logger refuses the run.
    """

    def __init__(
        self,
        directory: Path,
        *,
        from_step: int,
        experiment: schema.Experiment | None = None,
        loggers: Sequence[Logger] = (),
    ) -> None:
        self._path = directory / HISTORY
        self._loggers: tuple[Logger, ...] = ()
        self._writes = is_main_process()
        # A disk may not answer.
        self._stalls = StallReporter()
        if self._writes:
            with waiting_for(f"{self._path}, and the loggers of the run"):
                self._truncate(from_step)
                self._loggers = (*open_loggers(directory, experiment, from_step), *loggers)
        so_far = read_history(self._path).evaluations if is_main_process() else ()
        self._evaluations: dict[int, Mapping[str, float | None]] = dict(broadcast(so_far))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Records the metrics of one training step."""
        if not self._writes:
            return
        with self._waiting():
            self._append({"step": step, **values})
            for logger in self._loggers:
                logger.metrics(values, step)

    def evaluation(
        self, step: int, summary: Mapping[str, float | None], named: Mapping[str, float | None]
    ) -> None:
        """Records the scores of one evaluation.

        `summary` goes into the history and the loggers. `named` are scores under the names of the
        Object Detection API, for TensorBoard.
        """
        self._evaluations[step] = dict(summary)
        if not self._writes:
            return
        # Scores without a value are left out of the charts.
        scores, original = (
            {name: value for name, value in values.items() if value is not None}
            for values in (summary, named)
        )
        with self._waiting():
            self._append({"step": step, "evaluation": dict(summary)})
            for logger in self._loggers:
                logger.evaluation(scores, original, step)

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """Records a picture, `[H, W, 3]` uint8."""
        with self._waiting():
            for logger in self._loggers:
                logger.image(name, image, step)

    def evaluations(self) -> tuple[tuple[int, Mapping[str, float | None]], ...]:
        """Returns step and scores of every evaluation so far, oldest first."""
        return tuple(sorted(self._evaluations.items()))

    def set_evaluations_aside(self) -> Path:
        """Moves the scores so far to a file beside the history, and returns it."""
        aside = self._path.with_stem(f"{self._path.stem}-until-{max(self._evaluations)}")
        self._evaluations.clear()
        if self._writes:
            with self._waiting():
                lines = self._lines()
                _write(aside, lines)
                _write(self._path, [line for line in lines if "evaluation" not in line])
        return aside

    def close(self, *, failed: bool = False) -> None:
        """Closes the loggers; `failed` tells them that an error ended the run."""
        for logger in self._loggers:
            logger.close(failed=failed)

    def __enter__(self) -> Self:
        self._stalls.__enter__()
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        # A stopped run can be resumed, and has not failed.
        try:
            with self._waiting():
                self.close(failed=error is not None and not issubclass(error, KeyboardInterrupt))
        finally:
            self._stalls.__exit__()

    def _waiting(self) -> AbstractContextManager[None]:
        return self._stalls.waiting(f"{self._path}, and the loggers of the run")

    def _append(self, line: Mapping[str, Any]) -> None:
        with blamed(self._path), append_file(self._path) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def _truncate(self, step: int) -> None:
        _write(self._path, [line for line in self._lines() if line["step"] <= step])

    def _lines(self) -> list[Mapping[str, Any]]:
        history = read_history(self._path)
        scored = ({"step": at, "evaluation": scores} for at, scores in history.evaluations)
        return sorted((*history.training, *scored), key=itemgetter("step"))


def _write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    replace_durably(path, "".join(json.dumps(line) + "\n" for line in lines))
