"""Detects in images, videos and a camera, and writes what `stillbox predict` leaves."""

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from stillbox.checkpoints.packed import results_folder
from stillbox.cli.running import batch_profiler, progress_bar
from stillbox.devices.announcing import say_aside
from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.predicting.detections import Detections
from stillbox.predicting.files import (
    LabelFolder,
    best_thresholds,
    class_folders,
    json_lines,
    refuse_old,
    unique_names,
    write_crops,
    write_list,
)
from stillbox.predicting.images import Inputs
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import Selection
from stillbox.predicting.video import Video, VideoFile
from stillbox.printing import count_text, printable_line
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.parallel import ordered_map
from stillbox.records.pixels import few_values
from stillbox.training.signals import StopRequest

PREDICTIONS = "predictions"
_CROPS, _LABELS = "crops", "labels"
_UNREAD_SHOWN = 20
_CLASSES_SHOWN = 5
# A container is killed ten seconds after SIGTERM.
_GRACE = 5.0
# Few pixels show that most images use many values; all would have to be copied.
_STEPS = (16, 1)


class _Written(NamedTuple):
    """The written results of one image."""

    detections: Detections
    """The detections, in labels too; without the pixels, as only their size is needed."""
    entry: dict[str, Any]
    line: str
    few_values: bool


class PredictRun:
    """One run over all inputs. Ctrl-C, SIGTERM and SIGHUP end it with complete files.

    Raises:
        UserError: a report of the model is damaged.
    """

    def __init__(
        self,
        predictor: Predictor,
        selection: Selection,
        arguments: argparse.Namespace,
        folder: Path,
    ) -> None:
        self._predictor, self._selection, self._folder = predictor, selection, folder
        self._labels = _label_folder(predictor, selection, arguments, folder)
        self._crops = class_folders(predictor.class_names) if arguments.crops else None
        self._stride: int = arguments.frame_stride
        self._draws = not arguments.no_pictures
        self._profiler = batch_profiler(arguments.profile, folder, "predict")
        self._stop = StopRequest(_GRACE)
        self._unread: list[str] = []
        self._few: list[str] = []

    def run(self, inputs: Inputs, cameras: Sequence[int]) -> int:
        """Returns the exit code: 1 if an input could not be read.

        Raises:
            UserError: none could be read, or the results cannot be written.
        """
        claim_files(self._folder, result_names(inputs, cameras, draws=self._draws))
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
            count = len(self._unread)
            more = f"; so it is with all {count}" if count > 1 else ""
            raise UserError(self._unread[0] + more)
        self._say_few()
        self._say_unread(len(inputs.images) + len(videos))
        if self._stop.signal is not None:
            say_aside(f"stopped by {self._stop.signal.name}; the files hold what was done")
            return 128 + self._stop.signal
        return 1 if self._unread else 0

    def _run_images(self, images: Sequence[Path]) -> int:
        """Returns the number of images that were detected in."""
        names = dict(zip(map(str, images), picture_names(images), strict=True))
        lines = self._folder / f"{PREDICTIONS}.jsonl"
        selection = self._selection
        if self._labels is not None:
            least = min(selection.min_score, self._labels.least_score)
            selection = replace(selection, min_score=least)
        stream = self._predictor.detect(
            images,
            self._predictor.read,
            selection,
            observer=self._profiler,
            on_bad=lambda image, error: self._pass_over(str(image), error),
            workers=own_processors(),
        )

        def write(every: Detections) -> _Written:
            shown = every.at_least(self._selection.min_score)
            entry, target = shown.to_dict(), self._folder
            if self._draws:
                target = self._folder / names[shown.source]
                shown.save(target, min_score=self._selection.min_score)
                entry["picture"] = target.name
            self._write_crops(shown, Path(names[shown.source]).stem)
            blank = np.broadcast_to(np.uint8(0), shown.image.shape)
            line = f"{shown.source}: {describe_objects(shown.names)} -> {target}"
            few = all(few_values(Image.fromarray(shown.image[::n, ::n])) for n in _STEPS)
            return _Written(replace(every, image=blank), entry, line, few)

        began, done = time.perf_counter(), 0
        written = ordered_map(write, stream, own_processors())
        with json_lines(lines) as append, closing(written), closing(stream):  # type: ignore[type-var]
            for image in written:
                append(image.entry)
                print(printable_line(image.line))
                self._few += [image.detections.source] * image.few_values
                if self._labels is not None:
                    file = Path(image.detections.source)
                    name = Path(names[image.detections.source]).with_suffix(file.suffix).name
                    self._labels.add(file, image.detections, name)
                done += 1
                if self._stop.signal is not None:
                    break
        rate = done / max(time.perf_counter() - began, 1e-9)
        if done:
            output = write_list(lines, self._folder / f"{PREDICTIONS}.json")
            print(f"{output}: boxes are in pixels of the upright image; {rate:.1f} images/s")
            if self._labels is not None:
                print(printable_line(self._labels.write()))
        return done

    def _write_crops(self, detections: Detections, stem: str) -> None:
        if self._crops is not None:
            write_crops(detections, self._folder / _CROPS, stem, self._crops)

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
        stream = self._predictor.detect(
            frames,
            lambda frame: (
                self._predictor.read(frame.pixels)[0],
                f"{video.name}, frame {frame.number}",
            ),
            self._selection,
            observer=self._profiler,
        )
        lines, path = self._folder / f"{name}.jsonl", self._folder / f"{name}.webm"
        began, count, objects = time.perf_counter(), 0, Counter[str]()
        drawn = VideoFile(path, video.rate / video.stride, live=video.live)
        with json_lines(lines) as append, drawn, progress_bar("frames") as progress:
            for detections, frame in zip(stream, again, strict=False):
                seconds = round(frame.seconds, 3)
                place = {"video": video.name, "frame": frame.number, "time": seconds}
                entry = detections.to_dict()
                entry.pop("image")
                append(place | entry)
                if self._draws:
                    picture = detections.draw(self._selection.min_score)
                    drawn.write(np.asarray(picture), frame.seconds)
                self._write_crops(detections, f"{name}_{frame.number:06}")
                count += 1
                objects.update(detections.names)
                progress(count, video.frames or count)
                if self._stop.signal is not None:
                    break
        rate = count / max(time.perf_counter() - began, 1e-9)
        target = path if self._draws else lines
        counted = describe_objects(objects.elements())
        frames_text = count_text(count, "frame")
        line = f"{video.name}: {frames_text}, {counted}, {rate:.1f} frames/s -> {target}"
        print(printable_line(line))

    def _pass_over(self, name: str, error: UserError | OSError) -> None:
        reason = error.what if isinstance(error, UserError) else str(error.strerror or error)
        self._unread.append(f"{name}: {reason}")
        say_aside(printable_line(f"passed over: {self._unread[-1]}"))

    def _say_few(self) -> None:
        if self._few:
            count = count_text(len(self._few), "image")
            images = f"{count} with few of the 256 values, almost of one colour"
            say_aside(printable_line(f"{images}: first {self._few[0]}"))

    def _say_unread(self, total: int) -> None:
        if self._unread:
            count = len(self._unread)
            say_aside(f"{count} of {total} could not be read:")
            for line in self._unread[:_UNREAD_SHOWN]:
                say_aside(printable_line(f"  {line}"))
            if count > _UNREAD_SHOWN:
                say_aside(f"  and {count - _UNREAD_SHOWN} more, listed above")


def describe_objects(names: Iterable[str]) -> str:
    """Returns the number of objects, and the numbers of the most frequent classes."""
    counts = Counter(names)
    total = counts.total()
    if not total:
        return count_text(0, "object")
    most = counts.most_common(_CLASSES_SHOWN)
    rest = len(counts) - len(most)
    more = f" and {count_text(rest, 'more class')}" if rest else ""
    listed = ", ".join(f"{count} {name}" for name, count in most)
    return f"{count_text(total, 'object')} ({listed}{more})"


def _label_folder(
    predictor: Predictor, selection: Selection, arguments: argparse.Namespace, folder: Path
) -> LabelFolder | None:
    """Returns the writer of --labels; prints the thresholds of its classes."""
    if arguments.labels is None:
        return None
    names = predictor.class_names
    directory = results_folder(arguments.config, arguments.weights)
    thresholds = best_thresholds(directory / "evaluation", names) if directory else {}
    without = f"--min-score {selection.min_score:g}"
    if not thresholds:
        say_aside(f"labels: no report of `stillbox evaluate`, so of objects of at least {without}")
    else:
        listed = ", ".join(
            f"{names[class_id]} {score:.2f}" for class_id, score in thresholds.items()
        )
        rest = f"; other classes: {without}" if len(thresholds) < len(names) else ""
        say_aside(printable_line(f"labels: least scores of {directory}/evaluation: {listed}{rest}"))
    return LabelFolder(folder / _LABELS, arguments.labels, names, thresholds, selection.min_score)


def refuse_taken(
    folder: Path, inputs: Inputs, cameras: Sequence[int], arguments: argparse.Namespace
) -> None:
    """Refuses an output folder in which the results would replace files.

    Raises:
        UserError: files of somebody else; or labels or crops, which may have been edited.
    """
    for name, given in ((_CROPS, arguments.crops), (_LABELS, arguments.labels)):
        if given:
            refuse_old(folder / name)
    refuse_others(folder, result_names(inputs, cameras, draws=not arguments.no_pictures))


def result_names(inputs: Inputs, cameras: Sequence[int], *, draws: bool) -> Iterator[str]:
    """Yields the names of the files that a run writes, without crops and labels."""
    if inputs.images:
        yield from (f"{PREDICTIONS}.jsonl", f"{PREDICTIONS}.json")
        yield from picture_names(inputs.images) if draws else ()
    for name in _video_names([*inputs.videos, *cameras]):
        yield from (f"{name}.jsonl", f"{name}.webm")[: 1 + draws]


def picture_names(images: Sequence[Path]) -> list[str]:
    """Returns a file name for the picture of each image: its stem, with a number if it is taken."""
    return [f"{stem}.jpg" for stem in unique_names(image.stem for image in images)]


def _video_names(videos: Sequence[Path | int]) -> list[str]:
    stems = (f"webcam_{video}" if isinstance(video, int) else video.stem for video in videos)
    return unique_names(stems, PREDICTIONS)
