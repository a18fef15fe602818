"""What receives the metrics of a run: TensorBoard, and the trackers of `tracking.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from stillbox.records.files import make_folder
from stillbox.training.event_file import EventFile


class Logger(Protocol):
    """Receives what a run reports."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Records the metrics of a step by their names in the history."""

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        """Records scores by their names in the history, and by those of the original."""

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Records a picture, `[H, W, 3]` uint8."""

    def close(self, *, failed: bool) -> None:
        """Writes what is left."""


class TensorBoard:
    """TensorBoard's event files, in `tensorboard` of a model directory.

    What the Object Detection API logs too has its names, for runs side by side.

    Args:
        directory: the model directory.
        from_step: events of later steps are hidden; they are of a run that was aborted.
    """

    def __init__(self, directory: Path, from_step: int) -> None:
        folder = make_folder(directory / "tensorboard", below=directory)
        self._events = EventFile(folder, purge_step=from_step + 1)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Records the metrics of a step."""
        for name, value in values.items():
            self._events.scalar(_EVENT_NAMES.get(name, f"train/{name}"), value, step)

    def evaluation(
        self, scores: Mapping[str, float], original: Mapping[str, float], step: int
    ) -> None:
        """Records scores by both names."""
        for name, value in (as_evaluation(scores) | dict(original)).items():
            self._events.scalar(name, value, step)
        self._events.flush()

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Records a picture."""
        self._events.image(name, image, step)

    def close(self, *, failed: bool) -> None:
        """Flushes the events."""
        self._events.close()


_EVENT_NAMES = {
    "loss": "Loss/total_loss",
    "classification_loss": "Loss/classification_loss",
    "localization_loss": "Loss/localization_loss",
    "regularization_loss": "Loss/regularization_loss",
    "learning_rate": "learning_rate",
}


def as_evaluation(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns scores under names that tell them from metrics of training: `evaluation/AP`."""
    return {f"evaluation/{name}": value for name, value in scores.items()}
