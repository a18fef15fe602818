"""Frames of video files and cameras, and videos with detections drawn."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import cv2

from stillbox.errors import UserError
from stillbox.evaluation.pictures import Picture
from stillbox.predicting.backend import Pixels
from stillbox.records.files import create_file, replace_file
from stillbox.references import Parameter
from stillbox.untrusted import open_untrusted

_PLAYLISTS = (b"#EXTM3U", b"ffconcat", b"<?xml", b"<MPD", b"[playlist]", b"v=0")
# The rate of cameras and files that do not give one.
_USUAL_RATE = 30.0
_MOST_RATE = 1000.0
# A stalled camera or a clock that jumps must not fill the disk with copies of a frame.
_LONGEST_REPEAT = 10.0
_FRAMES_WAITING = 4


class Frame(NamedTuple):
    """One frame of a video."""

    number: int
    """From 0; skipped frames count."""
    seconds: float
    """Since the first frame."""
    pixels: Pixels


class Video:
    """A video file, or the camera of a number, of which every `stride`th frame is read.

    Raises:
        UserError: it cannot be opened.
    """

    def __init__(self, source: Path | int, *, stride: int = 1) -> None:
        self.live, self.stride = isinstance(source, int), stride
        self.name = f"webcam:{source}" if self.live else str(source)
        if isinstance(source, int):
            self._capture = cv2.VideoCapture(source)
        else:
            _refuse_playlist(source)
            _restrict_decoders()
            self._capture = cv2.VideoCapture(str(source), cv2.CAP_FFMPEG)
        if not self._capture.isOpened():
            raise _not_opened(self.name, live=self.live)
        rate = self._capture.get(cv2.CAP_PROP_FPS)
        self.rate = rate if math.isfinite(rate) and 0 < rate <= _MOST_RATE else _USUAL_RATE
        """Frames in a second, skipped ones included."""
        count = self._capture.get(cv2.CAP_PROP_FRAME_COUNT)
        self.frames = 0 if self.live or not 0 < count < 2**31 else -(-int(count) // stride)
        """Approximate number of frames to read; 0: unknown."""

    def __iter__(self) -> Iterator[Frame]:
        try:
            yield from self._read()
        finally:
            self._capture.release()

    def _read(self) -> Iterator[Frame]:
        number, start = 0, time.monotonic()
        while self._capture.grab():
            if number % self.stride == 0:
                # The time of the grabbed frame, also for variable rates.
                at = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
                if self.live:
                    at = time.monotonic() - start
                elif number and not at > 0:
                    at = number / self.rate
                read, pixels = self._capture.retrieve()
                if not read:
                    break
                yield Frame(number, at, cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
            number += 1
        if not number:
            raise _not_opened(self.name, live=self.live)


class VideoFile:
    """Writes a WebM video under a temporary name, and renames it when closed without an exception.

    Its codec is VP8, which all browsers play. The wheels of OpenCV have no encoder for H.264, their
    encoder for VP9 takes six times as long, and no browser plays MPEG-4 Part 2. A thread encodes
    during the detection in the next frames.

    Args:
        path: ends in `.webm`.
        rate: frames in a second.
        live: repeat frames so that the video is as long as the recording.
    """

    def __init__(self, path: Path, rate: float, *, live: bool = False) -> None:
        self._path, self._rate, self._live = path, rate, live
        self._partial = path.with_name(f".{path.stem}.partial{path.suffix}")
        self._writer: cv2.VideoWriter | None = None
        self._written = 0
        self._encoder = ThreadPoolExecutor(1, "encoder")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> "VideoFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # After an exception, frames that wait are left out.
        self._encoder.shutdown(cancel_futures=kind is not None)
        try:
            if self._writer is not None:
                self._writer.release()
                if kind is None:
                    self._finish()
        finally:
            self._partial.unlink(missing_ok=True)

    def write(self, picture: Picture, seconds: float) -> None:
        """Adds an RGB frame `[H, W, 3]` at `seconds`; all frames have the size of the first.

        Raises:
            UserError: the file cannot be written.
        """
        if self._writer is None:
            self._writer = self._open(picture.shape[1], picture.shape[0])
        copies = 1
        if self._live:
            due = round(seconds * self._rate) + 1 - self._written
            copies = max(0, min(due, round(_LONGEST_REPEAT * self._rate)))
        self._waiting.append(self._encoder.submit(self._encode, picture, copies))
        self._written += copies
        if len(self._waiting) > _FRAMES_WAITING:
            self._waiting.popleft().result()

    def _encode(self, picture: Picture, copies: int) -> None:
        assert self._writer is not None
        frame = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
        for _ in range(copies):
            self._writer.write(frame)

    def _finish(self) -> None:
        """Renames the file if it has all frames: OpenCV does not report a full disk."""
        # Counted, since the header of WebM has a duration only.
        written, count = cv2.VideoCapture(str(self._partial), cv2.CAP_FFMPEG), 0
        while written.grab():
            count += 1
        written.release()
        if count != self._written:
            raise _not_written(self._path)
        replace_file(self._partial, self._path)

    def _open(self, width: int, height: int) -> cv2.VideoWriter:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        create_file(self._partial).close()
        _restrict_decoders()
        code, size = cv2.VideoWriter.fourcc(*"VP80"), (width, height)
        with _without_messages():
            name = str(self._partial)
            writer = cv2.VideoWriter(name, cv2.CAP_FFMPEG, code, self._rate, size)
        if not writer.isOpened():
            raise _not_written(self._path)
        return writer


@contextmanager
def _without_messages() -> Iterator[None]:
    """Discards OpenCV's output on standard error, from C: a warning that WebM has no codec tags."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _not_written(path: Path) -> UserError:
    fix = f"choose another {Parameter('output')} folder, or make room on its disk"
    return UserError("the video cannot be written", where=str(path), fix=fix)


def _refuse_playlist(path: Path) -> None:
    """Refuses a list of other files, whatever its name: the decoder would open them."""
    with open_untrusted(path, most=None, where=str(path)) as file:
        start = file.read(4096)
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(_PLAYLISTS):
        problem = "this is a playlist, which names other files"
        raise UserError(problem, where=str(path), fix="give the videos that it names")


def _restrict_decoders() -> None:
    """Sets the variables that OpenCV reads when it opens a video, unless they are set."""
    # Otherwise the decoders also print the errors that are raised here.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    # A file cannot make the decoders open a connection.
    os.environ.setdefault("OPENCV_FFMPEG_CAPTURE_OPTIONS", "protocol_whitelist;file")


def _not_opened(name: str, *, live: bool) -> UserError:
    if live:
        fix = "see that it is connected and not in use; webcam:1 is the second one"
        return UserError("the camera cannot be opened", where=name, fix=fix)
    fix = "leave it out, or convert it: ffmpeg -i VIDEO video.mp4"
    return UserError("the video cannot be decoded", where=name, fix=fix)
