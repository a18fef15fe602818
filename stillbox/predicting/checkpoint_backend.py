"""Runs a trained model's own program, on the first device of this process."""

import threading
from collections.abc import Mapping, Sequence
from typing import Self

import jax
import numpy as np

from stillbox.boxes.structures import Detections
from stillbox.checkpoints.trained import TrainedModel
from stillbox.evaluation.program import DetectProgram, PreparedWeights, predict_program
from stillbox.evaluation.results import RawDetections
from stillbox.evaluation.tiling import Tiling
from stillbox.image_kind import ImageKind
from stillbox.inputs.resize import resize_image
from stillbox.predicting.backend import Pixels, Prepared
from stillbox.records.label_map import ClassSlots


class CheckpointBackend:
    """A `Backend`. It compiles a program at the first run of each batch size.

    Pickling keeps the weights only; the copy compiles its own programs.

    Raises:
        UserError: the model has no label map, or one that does not fit its classes.
    """

    batch_sizes = None

    def __init__(self, model: TrainedModel) -> None:
        self._model = model.named_by_config()
        self._slots = self._model.slots()
        self._programs: dict[int, DetectProgram] = {}
        self._weights: PreparedWeights | None = None  # of all programs
        self._lock = threading.Lock()

    @property
    def model(self) -> TrainedModel:
        """Weights, experiment and label map."""
        return self._model

    @property
    def class_names(self) -> Mapping[int, str]:
        """Class names by label map id."""
        return self._model.class_names()

    @property
    def source(self) -> str:
        """Origin of the weights."""
        return self._model.source

    @property
    def tiling(self) -> Tiling | None:
        """The tiles of the experiment."""
        return Tiling.of(self._model.experiment.data.tiles)

    @property
    def image_kind(self) -> ImageKind:
        """Channels and bits of the images."""
        return self._model.experiment.model.image_kind

    @property
    def max_detections(self) -> int:
        """Most detections in an image."""
        return self._model.experiment.model.max_detections

    def prepare(self, image: Pixels, where: str | None = None) -> Prepared:
        """Resizes an image to the network input, `[H, W, C]` float32 in 0..255."""
        pixels, true_size = resize_image(image, self._model.experiment.model.resizer, where=where)
        return Prepared(pixels, true_size, (image.shape[0], image.shape[1]))

    def warm_up(self, batch_size: int) -> None:
        """Compiles the program for batches of a size, and prepares its kernels."""
        _ = self._program(batch_size)[0].compiled

    def run(self, images: Sequence[Prepared]) -> list[RawDetections]:
        """Detects in a batch; a new size is compiled first."""
        program, weights = self._program(len(images))
        detections = program.bind_weights(weights)(
            np.stack([image.pixels for image in images]).astype(np.float32, copy=False),
            np.array([image.true_size for image in images], np.int32),
        )
        arrays = jax.device_get(detections)
        return [_row(arrays, row, self._slots, image) for row, image in enumerate(images)]

    def _program(self, batch_size: int) -> tuple[DetectProgram, PreparedWeights]:
        with self._lock:
            if batch_size not in self._programs:
                experiment = self._model.experiment
                self._programs[batch_size] = predict_program(experiment, batch_size=batch_size)
            program = self._programs[batch_size]
            if self._weights is None:
                self._weights = program.prepare(self._model.params, self._model.stats)
            return program, self._weights

    def __reduce__(self) -> tuple[type[Self], tuple[TrainedModel]]:
        return type(self), (self._model,)


def _row(arrays: Detections, row: int, slots: ClassSlots, image: Prepared) -> RawDetections:
    """Returns one image's detections in pixels of the given image."""
    count = int(arrays.count[row])
    scale = np.tile(np.array(image.size, np.float64), 2)
    return RawDetections(
        boxes=np.asarray(arrays.boxes[row, :count], np.float64) * scale,
        scores=np.asarray(arrays.scores[row, :count], np.float64),
        class_ids=slots.id_of(np.asarray(arrays.classes[row, :count])),
        finite=arrays.finite is None or bool(arrays.finite[row]),
    )
