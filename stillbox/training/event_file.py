"""TensorBoard events of a run, written by whoever records them.

tensorboardX writes in a thread of its own, where a full disk ends the thread and not the run. An
event file is a TFRecord file of protocol buffers, so its classes and our framing are all it takes.
"""

import io
import socket
import time
from pathlib import Path

import numpy as np
from PIL import Image
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from stillbox.checkpoints.files import blamed
from stillbox.records.framing import frame

_FLUSH_SECONDS = 30.0


class EventFile:
    """One more event file in a folder; TensorBoard reads all of them as one run.

    Args:
        folder: made if absent.
        purge_step: what older files say of this step and of those after it is hidden.

    Every method raises OSError, with the file's name, where the disk takes no more.
    """

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        with blamed(self._path):
            self._file = self._path.open("ab")
        self._flushed = time.monotonic()
        self._write(Event(file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._write(Event(step=purge_step, session_log=start))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Records a number."""
        self._add(Summary.Value(tag=name, simple_value=value), step)

    def image(self, name: str, image: np.ndarray, step: int) -> None:
        """Records a picture, `[H, W, 3]` uint8."""
        height, width, channels = image.shape
        encoded = io.BytesIO()
        Image.fromarray(image).save(encoded, "PNG")
        picture = Summary.Image(
            height=height,
            width=width,
            colorspace=channels,
            encoded_image_string=encoded.getvalue(),
        )
        self._add(Summary.Value(tag=name, image=picture), step)

    def flush(self) -> None:
        """Gives the file what has been recorded so far."""
        self._flushed = time.monotonic()
        with blamed(self._path):
            self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        with blamed(self._path):
            self._file.close()

    def _add(self, value: Summary.Value, step: int) -> None:
        self._write(Event(step=step, summary=Summary(value=[value])))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        with blamed(self._path):
            self._file.write(frame(event.SerializeToString()))
