"""Receivers of a run's metrics: TensorBoard's event files, and the protocol of all loggers.

An event file is a TFRecord file of `Event` messages. It is written without a library, whose writer
thread would end on a full disk without ending the run. Source:
tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto.
"""

import io
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from stillbox.checkpoints.files import blamed
from stillbox.records.files import append_file, make_folder
from stillbox.records.tfrecord import frame
from stillbox.records.wire import bytes_field, varint_field

_FLUSH_SECONDS = 30.0
# Event: double wall_time = 1, int64 step = 2, and one of these.
_FILE_VERSION, _SUMMARY, _SESSION_LOG = 3, 5, 7
_WALL_TIME = struct.Struct("<Bd")


class EventFile:
    """One more event file in a folder; TensorBoard reads all of them as one run.

    Args:
        purge_step: TensorBoard hides entries of older files from this step on.

    Raises:
        OSError: the disk is full; every method raises it, with the file's name.
    """

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        with blamed(self._path):
            self._file = append_file(self._path)
        self._flushed = time.monotonic()
        self._write(event(0, bytes_field(_FILE_VERSION, b"brain.Event:2")))
        # SessionLog: status = 1, of which 1 is START.
        self._write(event(purge_step, bytes_field(_SESSION_LOG, varint_field(1, 1))))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Records a number."""
        self._add(scalar_summary(name, value), step)

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Records a picture, `[H, W, 3]` uint8."""
        self._add(image_summary(name, image), step)

    def flush(self) -> None:
        """Writes buffered events to the file."""
        self._flushed = time.monotonic()
        with blamed(self._path):
            self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        with blamed(self._path):
            self._file.close()

    def _add(self, summary: bytes, step: int) -> None:
        self._write(event(step, bytes_field(_SUMMARY, summary)))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def _write(self, message: bytes) -> None:
        with blamed(self._path):
            self._file.write(frame(message))


def event(step: int, content: bytes) -> bytes:
    """Returns an `Event` of the present time with its one field of content."""
    return _WALL_TIME.pack(1 << 3 | 1, time.time()) + varint_field(2, step) + content


def scalar_summary(name: str, value: float) -> bytes:
    """Returns a `Summary` of a number: `Value { tag = 1, float simple_value = 2 }`."""
    with np.errstate(over="ignore"):  # the loss of a diverging run may exceed float32
        number = bytes([2 << 3 | 5]) + np.array(value, "<f4").tobytes()
    return bytes_field(1, bytes_field(1, name.encode()) + number)


def image_summary(name: str, image: np.ndarray) -> bytes:
    """Returns a `Summary` of a picture `[H, W, 3]` uint8: `Value { tag = 1, Image image = 4 }`."""
    encoded = io.BytesIO()
    Image.fromarray(image).save(encoded, "PNG")
    # Image: height = 1, width = 2, colorspace = 3 (channels), encoded_image_string = 4.
    sizes = b"".join(varint_field(number, size) for number, size in enumerate(image.shape, 1))
    picture = sizes + bytes_field(4, encoded.getvalue())
    return bytes_field(1, bytes_field(1, name.encode()) + bytes_field(4, picture))


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
        """Writes buffered entries."""


class TensorBoard:
    """TensorBoard's event files, in `tensorboard` of a model directory.

    Values that the Object Detection API logs too have its names, so that runs can be compared.

    Args:
        from_step: events of later steps, which an aborted run wrote, are hidden.
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
    """Returns scores under names that differ from those of training: `evaluation/AP`."""
    return {f"evaluation/{name}": value for name, value in scores.items()}
