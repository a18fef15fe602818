"""Runs an exported artefact behind the interface that a predictor knows."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from stillbox.experiment.schema import OneStage
from stillbox.experiment.yaml_config import from_yaml
from stillbox.exporting.formats import Run, format_module
from stillbox.exporting.manifest import EXPERIMENT, LABEL_MAP, Manifest
from stillbox.exporting.settings import ENCODED
from stillbox.inputs.resize import resize_image, resized_size
from stillbox.predicting.backend import Found, Pixels, Prepared
from stillbox.records.label_map import LabelMap
from stillbox.records.wire import serialize_features


class ExportBackend:
    """A `Backend`. Its artefact is loaded when it is first run, by each process for itself.

    Args:
        folder: what `stillbox export` wrote.
        runtime: which of the runtimes that know the format; empty: the first choice.
    """

    def __init__(self, folder: Path, runtime: str = "") -> None:
        self._folder, self._runtime = folder, runtime
        self.manifest = Manifest.read(folder)
        experiment = from_yaml((folder / EXPERIMENT).read_text(), str(folder / EXPERIMENT))
        self._model = experiment.model
        label_map = folder / LABEL_MAP
        self._names = LabelMap.from_text(label_map.read_text(), str(label_map)).names

    @property
    def class_names(self) -> Mapping[int, str]:
        """Names for people by label map id."""
        return self._names

    @property
    def source(self) -> str:
        """The folder of the artefact."""
        return f"{self._folder} ({self._runtime or self.manifest.settings.format})"

    @property
    def batch_sizes(self) -> tuple[int, ...] | None:
        """The artefact's batch; 1 where images keep their own sizes and cannot be stacked."""
        settings = self.manifest.settings
        if self._fed_size is None and settings.input_type not in ENCODED:
            return (1,)
        return (settings.batch_size,) if settings.batch_size else None

    @property
    def max_detections(self) -> int:
        """The most detections that it finds in an image."""
        return self.manifest.settings.max_detections or self._model.max_detections

    def fed(self, image: Pixels) -> Pixels:
        """Returns the image as a client gives it: of the artefact's size, in whole numbers.

        Where the artefact has a size of its own, resizing and padding to it is the client's, and no
        part of what is compared with the checkpoint.
        """
        if self._fed_size is None:
            return image
        pixels: Pixels = np.rint(self.prepare(image).pixels).astype(np.uint8)
        return pixels

    def prepare(self, image: Pixels, where: str | None = None) -> Prepared:
        """Makes what the artefact takes: the image itself, or one of the artefact's size."""
        size = image.shape[0], image.shape[1]
        fed = self._fed_size
        if fed is None:
            return Prepared(image, size, size)
        if fed != self.manifest.input_size:
            return Prepared(cv2.resize(image, fed[::-1], interpolation=cv2.INTER_AREA), fed, size)
        pixels, true_size = resize_image(image, self._model.resizer, where=where)
        return Prepared(pixels, true_size, size)

    def run(self, images: Sequence[Prepared]) -> list[Found]:
        """Detects in a batch."""
        rows = self.manifest.settings.batch_size
        filled = [*images, *[images[-1]] * (rows - len(images))]
        outputs = self._run(self._input([image.pixels for image in filled]))
        return [self._row(outputs, row, image) for row, image in enumerate(images)]

    @cached_property
    def _run(self) -> Run:
        module = format_module(self.manifest.settings.format)
        return module.load(self._folder, self.manifest, self._runtime)

    @property
    def _fed_size(self) -> tuple[int, int] | None:
        """Height and width of what the artefact takes; None: images keep their own."""
        settings = self.manifest.settings
        if settings.input_type == "raw_image_tensor":
            return self.manifest.input_size
        return settings.image_size

    def _input(self, pixels: Sequence[np.ndarray]) -> Any:  # noqa: ANN401
        kind = self.manifest.settings.input_type
        if kind in ENCODED:
            files = [cv2.imencode(".png", one[..., ::-1])[1].tobytes() for one in pixels]
            if kind == "tf_example":
                files = [serialize_features({"image/encoded": [file]}) for file in files]
            return np.array(files, object)
        stacked = np.stack(pixels)
        if kind == "image_tensor":
            return np.rint(stacked).astype(np.uint8)
        stacked = stacked.astype(np.float32)
        if kind == "float_image_tensor":
            return stacked
        assert isinstance(self._model, OneStage)  # others are not exported
        normal = self._model.pixels
        return (stacked - np.array(normal.mean, np.float32)) / np.array(normal.std, np.float32)

    def _row(self, outputs: Mapping[str, np.ndarray], row: int, image: Prepared) -> Found:
        """Returns one image's detections in the pixels of the image as it was given."""
        count = int(outputs["num_detections"][row])
        boxes = np.asarray(outputs["detection_boxes"][row, :count], np.float64)
        fed = (image.pixels.shape[0], image.pixels.shape[1])
        boxes = boxes / np.tile(self._frame(fed), 2) * np.tile(np.array(fed, np.float64), 2)
        boxes *= np.tile(np.array(image.size) / np.array(image.true_size), 2)
        found = Found(
            boxes=boxes,
            scores=np.asarray(outputs["detection_scores"][row, :count], np.float64),
            class_ids=np.rint(outputs["detection_classes"][row, :count]).astype(np.int64),
        )
        return found if image.true_size == fed else _inside(found, image.size)

    def _frame(self, fed: tuple[int, int]) -> np.ndarray:
        """Returns what height and width of the fed image are in the boxes' unit, `[2]`."""
        settings = self.manifest.settings
        if settings.signature == "detection_api" or settings.normalized_coordinates:
            return np.ones(2)
        if fed == self.manifest.input_size:
            return np.array(fed, np.float64)
        return np.array(resized_size(fed, self._model.resizer), np.float64)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self._folder, "runtime": self._runtime}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _inside(found: Found, size: tuple[int, int]) -> Found:
    """Clips to the image what was found in it with its padding; drops what has no area then."""
    boxes = np.clip(found.boxes, 0, np.tile(size, 2))
    seen = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    return Found(boxes[seen], found.scores[seen], found.class_ids[seen])
