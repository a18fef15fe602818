"""Detects in images, videos and a camera, and writes what `stillbox predict` leaves."""

import argparse
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillbox.cli.bars import progress_bar
from stillbox.cli.running import batch_profiler
from stillbox.devices.announcing import say_aside
from stillbox.devices.processors import own_processors
from stillbox.errors import UserError
from stillbox.predicting.detections import Detections
from stillbox.predicting.images import read_image
from stillbox.predicting.listing import Inputs
from stillbox.predicting.prediction_files import json_lines, write_list
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.video import Video, VideoFile
from stillbox.printing import printable_line
from stillbox.records.parallel import ordered_map
from stillbox.training.signals import StopRequest

PREDICTIONS = "predictions"
_UNREAD_SHOWN = 20
# A container is killed ten seconds after SIGTERM.
_GRACE = 5.0


class _Written(NamedTuple):
    """One image whose results are written."""

    entry: dict[str, Any]
    line: str


class PredictRun:
    """One run over all inputs. Ctrl-C, SIGTERM and SIGHUP end it with complete files.

    Args:
        predictor: detects.
        arguments: those of `stillbox predict`.
        folder: of all results.
    """

    def __init__(self, predictor: Predictor, arguments: argparse.Namespace, folder: Path) -> None:
        self._predictor, self._folder = predictor, folder
        self._min_score: float = arguments.min_score
        self._stride: int = arguments.frame_stride
        self._draws = not arguments.no_pictures
        self._profiler = batch_profiler(arguments.profile, folder, "predict")
        self._stop = StopRequest(_GRACE)
        self._unread: list[str] = []

    def run(self, inputs: Inputs, cameras: Sequence[int]) -> int:
        """Returns the exit code: 1 if an input could not be read.

        Raises:
            UserError: none could be read, or the results cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        videos: list[Path | int] = [*inputs.videos, *cameras]
        done = 0
        # Compiled before signals are caught, so that they interrupt it.
        self._predictor.warm_up()
        with self._profiler, self._stop:
            if inputs.images:
                done += self._run_images(inputs.images)
            for video, name in zip(videos, _video_names(videos), strict=True):
                if self._stop.signal is None:
                    done += self._run_video(video, name)
        if self._unread and not done and self._stop.signal is None:
            raise UserError(*self._first_unread())
        self._say_unread(len(inputs.images) + len(videos))
        if self._stop.signal is not None:
            say_aside(f"stopped by {self._stop.signal.name}; the files hold what was done")
            return 128 + self._stop.signal
        return 1 if self._unread else 0

    def _run_images(self, images: Sequence[Path]) -> int:
        """Returns the number of images that were detected in."""
        names = dict(zip(map(str, images), picture_names(images), strict=True))
        lines = self._folder / f"{PREDICTIONS}.jsonl"
        found = self._predictor.detect(
            images,
            read_image,
            min_score=self._min_score,
            observer=self._profiler,
            on_bad=lambda image, error: self._pass_over(str(image), error),
            workers=own_processors(),
        )

        def write(one: Detections) -> _Written:
            entry, target = one.to_dict(), self._folder
            if self._draws:
                target = self._folder / names[one.source]
                one.save(target, min_score=self._min_score)
                entry["picture"] = target.name
            return _Written(entry, f"{one.source}: {len(one)} objects -> {target}")

        began, done = time.perf_counter(), 0
        written = ordered_map(write, found, own_processors())
        with json_lines(lines) as append, closing(written), closing(found):  # type: ignore[type-var]
            for one in written:
                append(one.entry)
                print(printable_line(one.line))
                done += 1
                if self._stop.signal is not None:
                    break
        rate = done / max(time.perf_counter() - began, 1e-9)
        if done:
            output = write_list(lines, self._folder / f"{PREDICTIONS}.json")
            print(f"{output}: boxes are in pixels of the upright image; {rate:.1f} images/s")
        return done

    def _run_video(self, source: Path | int, name: str) -> int:
        """Returns 1, or 0 if the video could not be read."""
        try:
            video = Video(source, stride=self._stride)
            self._detect_frames(video, name)
        except UserError as error:
            if error.where != (f"webcam:{source}" if isinstance(source, int) else str(source)):
                raise
            self._pass_over(error.where, error)
            return 0
        return 1

    def _detect_frames(self, video: Video, name: str) -> None:
        frames, again = tee(video)
        found = self._predictor.detect(
            frames,
            lambda frame: (frame.pixels, f"{video.name}, frame {frame.number}"),
            min_score=self._min_score,
            observer=self._profiler,
        )
        lines, path = self._folder / f"{name}.jsonl", self._folder / f"{name}.mp4"
        began, count, objects = time.perf_counter(), 0, 0
        drawn = VideoFile(path, video.rate / video.stride, live=video.live)
        with json_lines(lines) as append, drawn, progress_bar("frames") as progress:
            for one, frame in zip(found, again, strict=False):
                seconds = round(frame.seconds, 3)
                place = {"video": video.name, "frame": frame.number, "time": seconds}
                entry = one.to_dict()
                entry.pop("image")
                append(place | entry)
                if self._draws:
                    drawn.write(np.asarray(one.draw(self._min_score)), frame.seconds)
                count, objects = count + 1, objects + len(one)
                progress(count, video.frames or count)
                if self._stop.signal is not None:
                    break
        rate = count / max(time.perf_counter() - began, 1e-9)
        target = path if self._draws else lines
        line = f"{video.name}: {count} frames, {objects} objects, {rate:.1f} frames/s -> {target}"
        print(printable_line(line))

    def _pass_over(self, name: str, error: UserError | OSError) -> None:
        what = error.what if isinstance(error, UserError) else str(error.strerror or error)
        self._unread.append(f"{name}: {what}")
        say_aside(printable_line(f"passed over: {self._unread[-1]}"))

    def _first_unread(self) -> tuple[str]:
        more = f"; so it is with all {len(self._unread)}" if len(self._unread) > 1 else ""
        return (self._unread[0] + more,)

    def _say_unread(self, total: int) -> None:
        if self._unread:
            count = len(self._unread)
            say_aside(f"{count} of {total} could not be read:")
            for line in self._unread[:_UNREAD_SHOWN]:
                say_aside(printable_line(f"  {line}"))
            if count > _UNREAD_SHOWN:
                say_aside(f"  and {count - _UNREAD_SHOWN} more, listed above")


def picture_names(images: Sequence[Path]) -> list[str]:
    """Returns a file name for the picture of each image: its stem, with a number if it is taken."""
    return [f"{stem}.png" for stem in _unique(image.stem for image in images)]


def _video_names(videos: Sequence[Path | int]) -> list[str]:
    stems = (f"webcam_{one}" if isinstance(one, int) else one.stem for one in videos)
    return _unique(stems, PREDICTIONS)


def _unique(stems: Iterable[str], *reserved: str) -> list[str]:
    """Returns the stems, with a number where one is taken."""
    names: list[str] = []
    taken = set(reserved)
    for stem in stems:
        name, number = stem, 1
        # Some file systems ignore case.
        while name.lower() in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name.lower())
        names.append(name)
    return names
