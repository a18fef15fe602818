"""What a run leaves for people: a history in JSON lines and TensorBoard events."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.checkpoints.files import blamed
from stillbox.devices.job import is_first, of_first
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.training.event_file import EventFile


class Summaries:
    """Writes metrics of a run into its model directory.

    The history is the one that early stopping, the best checkpoint and the report read again, so a
    resumed run first cuts it back to the step that it resumes from. Of several processes the first
    writes; all of them know the scores so far.
    """

    def __init__(self, directory: Path, *, from_step: int) -> None:
        self._path = directory / HISTORY
        self._events: EventFile | None = None
        if is_first():
            self._cut_back(from_step)
            # Hides what an aborted run wrote from this step on; that of `from_step` itself stays.
            self._events = EventFile(directory / "tensorboard", purge_step=from_step + 1)
        so_far = read_history(self._path).evaluations if is_first() else ()
        self._evaluations: dict[int, Mapping[str, float | None]] = dict(of_first(so_far))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Records the metrics of one training step."""
        if self._events is None:
            return
        self._append({"step": step, **values})
        for name, value in values.items():
            self._events.scalar(_EVENT_NAMES.get(name, f"train/{name}"), value, step)

    def evaluation(
        self, step: int, summary: Mapping[str, float | None], named: Mapping[str, float | None]
    ) -> None:
        """Records the scores of one evaluation.

        Args:
            step: updates done so far.
            summary: goes into the history.
            named: goes into the events, under the original's names.
        """
        self._evaluations[step] = dict(summary)
        if self._events is None:
            return
        self._append({"step": step, "evaluation": dict(summary)})
        for name, value in named.items():
            if value is not None:
                self._events.scalar(name, value, step)
        self._events.flush()

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """Records a picture, `[H, W, 3]` uint8."""
        if self._events is not None:
            self._events.image(name, image, step)

    def evaluations(self) -> tuple[tuple[int, Mapping[str, float | None]], ...]:
        """Returns step and scores of every evaluation so far, oldest first."""
        return tuple(sorted(self._evaluations.items()))

    def close(self) -> None:
        """Flushes the events."""
        if self._events is not None:
            self._events.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        with blamed(self._path), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _cut_back(self, step: int) -> None:
        history = read_history(self._path)
        lines: list[Mapping[str, Any]] = [
            *history.training,
            *({"step": at, "evaluation": scores} for at, scores in history.evaluations),
        ]
        kept = sorted((line for line in lines if line["step"] <= step), key=_step_of)
        temporary = self._path.with_suffix(".tmp")
        with blamed(temporary):
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        temporary.replace(self._path)


def _step_of(line: Mapping[str, Any]) -> int:
    return int(line["step"])


_EVENT_NAMES = {
    "loss": "Loss/total_loss",
    "classification_loss": "Loss/classification_loss",
    "localization_loss": "Loss/localization_loss",
    "regularization_loss": "Loss/regularization_loss",
    "learning_rate": "learning_rate",
    "images_per_second": "speed/images_per_second",
    # The name that TensorFlow's estimators gave it.
    "steps_per_second": "global_step/sec",
    "waiting_for_data": "speed/share_of_time_waiting_for_data",
}
