"""Files of predictions that grow line by line, crops, and labels for annotation tools."""

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.figures_files import FIGURES
from stillbox.evaluation.pictures import save_picture
from stillbox.evaluation.results import class_keys
from stillbox.predicting.detections import Detections
from stillbox.printing import count_text
from stillbox.records.example import Example
from stillbox.records.export import LabelledImage, export_images
from stillbox.records.files import create_file, replace_file
from stillbox.records.foreign_files import number, read_json
from stillbox.records.label_map import LabelMap, LabelMapItem
from stillbox.references import Parameter
from stillbox.untrusted import open_untrusted

AppendEntry = Callable[[Mapping[str, object]], None]


@contextmanager
def json_lines(path: Path) -> Iterator[AppendEntry]:
    """Yields a function that appends an object to a file as a line of JSON, unbuffered.

    Raises:
        UserError: it cannot be written.
    """
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.TextIOWrapper(create_file(path), encoding="utf-8", line_buffering=True)

    def append(entry: Mapping[str, object]) -> None:
        with _naming(path):
            print(json.dumps(entry), file=file)

    try:
        yield append
    finally:
        with _naming(path):
            file.close()


def write_list(lines: Path, path: Path) -> Path:
    """Writes the objects of a file of JSON lines as one JSON list, whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with (
            _naming(path),
            open_untrusted(lines, most=None) as source,
            create_file(partial) as target,
        ):
            target.write(b"[")
            for number, line in enumerate(source):
                target.write((b",\n" if number else b"\n") + line.rstrip(b"\n"))
            target.write(b"\n]\n")
        with _naming(path):
            return replace_file(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raises errors of the system with the file's name."""
    try:
        yield
    except OSError as error:
        fix = f"choose another {Parameter('output')} folder, or make room on its disk"
        raise UserError(f"cannot be written: {error.strerror}", where=str(path), fix=fix) from error


_LONGEST_NAME = 80


def write_crops(
    detections: Detections, folder: Path, stem: str, folders: Mapping[int, str]
) -> None:
    """Writes each object as `CLASS/STEM_N.jpg` below `folder`, N from 1, the best first.

    `folders` are the names of the classes' folders, by label map id; an object of a class without a
    folder goes to the folder of its name.

    Raises:
        UserError: the folder is not writable.
    """
    for count, detection in enumerate(detections, start=1):
        ymin, xmin, ymax, xmax = detection.box
        # Pixels that the box touches; it lies in the image and has an area.
        crop = detections.image[
            math.floor(ymin) : math.ceil(ymax), math.floor(xmin) : math.ceil(xmax)
        ]
        place = folder / folders.get(detection.class_id, detection.name)
        save_picture(crop, place / f"{stem}_{count}.jpg", below=folder.parent)


def refuse_old(folder: Path) -> None:
    """Refuses a folder with files: corrected labels, or crops that would mix with new ones.

    Raises:
        UserError: it has files, or is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        problem = "there are files of an earlier run, which may have been edited"
        fix = f"choose another {Parameter('output')} folder, or remove this one"
        raise UserError(problem, where=str(folder), fix=fix)


def class_folders(class_names: Mapping[int, str]) -> dict[int, str]:
    """Returns each class's name as a folder name, without characters that file systems refuse."""
    plain = (re.sub(r"[^\w -]", "_", name).strip() for name in class_names.values())
    names = unique_names(name[:_LONGEST_NAME] or "class" for name in plain)
    return dict(zip(class_names, names, strict=True))


def unique_names(stems: Iterable[str], *reserved: str) -> list[str]:
    """Returns the stems, with a number where one is taken."""
    names: list[str] = []
    taken = set(reserved)
    for stem in stems:
        name, count = stem, 1
        # Some file systems ignore case.
        while name.lower() in taken:
            count += 1
            name = f"{stem}_{count}"
        taken.add(name.lower())
        names.append(name)
    return names


class LabelFolder:
    """Gathers the labels of images and writes them, with the images, in one format.

    Args:
        output: a folder that does not exist or is empty; see `refuse_old`.
        form: one of `stillbox.records.export.FORMS`.
        class_names: by label map id.
        thresholds: least score of an object by label map id.
        min_score: least score of an object of another class.
    """

    def __init__(
        self,
        output: Path,
        form: str,
        class_names: Mapping[int, str],
        thresholds: Mapping[int, float],
        min_score: float,
    ) -> None:
        self._output, self._form = output, form
        items = tuple(LabelMapItem(class_id, name) for class_id, name in class_names.items())
        self._label_map = LabelMap(items)
        self._thresholds, self._min_score = thresholds, min_score
        self._images: list[tuple[Path, LabelledImage]] = []

    @property
    def least_score(self) -> float:
        """The least score of an object of any class."""
        return min([self._min_score, *self._thresholds.values()])

    def add(self, file: Path, detections: Detections, name: str) -> None:
        """Adds an image; its copy gets the name `name`."""
        least = [self._thresholds.get(int(i), self._min_score) for i in detections.class_ids]
        detections = detections.pick(detections.scores >= least)
        height, width = detections.image.shape[:2]
        sides = np.array([height, width] * 2, np.float64)
        example = Example(
            image_id=name,
            encoded=b"",
            filename=name,
            boxes=(detections.boxes / sides).astype(np.float32),
            class_ids=detections.class_ids.astype(np.int32),
        )
        image = LabelledImage(example, PurePosixPath(name), height, width, detections.scores)
        self._images.append((file, image))

    def write(self) -> str:
        """Writes the folder; returns a line about it.

        Raises:
            UserError: it is not writable.
        """
        named = self._label_map
        used = {i for _, image in self._images for i in image.example.class_ids.tolist()}
        # A label map with gaps has no name for some classes of the model.
        unnamed = (LabelMapItem(i, named.name_of(i)) for i in used if i not in named)
        label_map = LabelMap((*named, *unnamed))
        export_images(self._images, label_map, self._output, self._form)
        images = count_text(len(self._images), "image")
        boxes = sum(len(image.example.boxes) for _, image in self._images)
        return f"{self._output}: {count_text(boxes, 'box')} in {images}, as {self._form}"


def best_thresholds(directory: Path, class_names: Mapping[int, str]) -> dict[int, float]:
    """Returns the score with the highest F1 of each class that has one, by label map id.

    `directory` is the folder of a report of `stillbox evaluate`, or has none. `class_names` are the
    model's; classes that the report lacks are left out.

    Raises:
        UserError: the report is damaged.
    """
    path = directory / FIGURES
    if not path.is_file():
        return {}
    content = read_json(path)
    classes = content.get("per_class") if isinstance(content, dict) else None
    if not isinstance(classes, dict):
        fix = "evaluate the model again, or remove the folder"
        raise UserError("this is no report of `stillbox evaluate`", where=str(path), fix=fix)
    thresholds = {}
    for class_id, name in class_keys(class_names).items():
        figures = classes.get(name)
        score = number(figures.get("threshold")) if isinstance(figures, dict) else math.nan
        if 0 <= score <= 1:
            thresholds[class_id] = score
    return thresholds
