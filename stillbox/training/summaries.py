"""The log of a run: a history in JSON lines, and TensorBoard events."""

import json
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.checkpoints.files import blamed
from stillbox.devices.job import broadcast, is_main_process
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.training.event_file import EventFile


class Summaries:
    """Writes metrics of a run into its model directory.

    Early stopping, the choice of the best checkpoint and the report read the history, so a resumed
    run first truncates it to its first step. Of several processes only the first writes; all have
    the scores so far.
    """

    def __init__(self, directory: Path, *, from_step: int) -> None:
        self._path = directory / HISTORY
        self._events: EventFile | None = None
        if is_main_process():
            self._truncate(from_step)
            # Hides the events of an aborted run after `from_step`.
            self._events = EventFile(directory / "tensorboard", purge_step=from_step + 1)
        so_far = read_history(self._path).evaluations if is_main_process() else ()
        self._evaluations: dict[int, Mapping[str, float | None]] = dict(broadcast(so_far))

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
            summary: for the history.
            named: for the events, under the names of the Object Detection API.
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

    def _truncate(self, step: int) -> None:
        history = read_history(self._path)
        lines: list[Mapping[str, Any]] = [
            *history.training,
            *({"step": at, "evaluation": scores} for at, scores in history.evaluations),
        ]
        kept = sorted((line for line in lines if line["step"] <= step), key=itemgetter("step"))
        temporary = self._path.with_suffix(".tmp")
        with blamed(temporary):
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        temporary.replace(self._path)


_EVENT_NAMES = {
    "loss": "Loss/total_loss",
    "classification_loss": "Loss/classification_loss",
    "localization_loss": "Loss/localization_loss",
    "regularization_loss": "Loss/regularization_loss",
    "learning_rate": "learning_rate",
    "images_per_second": "speed/images_per_second",
    # The name that TensorFlow's estimators use.
    "steps_per_second": "global_step/sec",
    "waiting_for_data": "speed/share_of_time_waiting_for_data",
}
