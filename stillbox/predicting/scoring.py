"""Scores a backend, such as an exported artefact, like a checkpoint.

It is a module of its own because prediction needs no evaluator.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.structures import Batch, Detections
from stillbox.errors import UserError
from stillbox.evaluation.evaluator import EvaluationResult, ImageProgress
from stillbox.evaluation.ground_truth import check_agreement
from stillbox.evaluation.results import RawDetections
from stillbox.evaluation.scoring import score_batches
from stillbox.experiment import schema
from stillbox.inputs.dataset import Dataset
from stillbox.inputs.resize import ENLARGE_CANVAS
from stillbox.predicting.backend import Backend, Prepared
from stillbox.predicting.predictor import Predictor


def score_backend(
    backend: Backend,
    experiment: schema.Experiment,
    dataset: Dataset,
    progress: ImageProgress | None = None,
) -> EvaluationResult:
    """Runs a backend over an evaluation set, an image at a time, and scores its detections.

    Raises:
        UserError: label maps disagree, there is no image, or there are several processes.
    """
    if jax.process_count() > 1:
        problem = "several processes cannot score an export together"
        raise UserError(problem, where=backend.source, fix="start one process")
    check_agreement((), dataset.class_names, slots=dataset.slots, other_names=backend.class_names)
    most = experiment.evaluation.max_examples
    all_images = len(dataset.source)
    records = range(min(most or all_images, all_images))
    images = _Images(backend, dataset, records)

    return score_batches(
        images.detect,
        images,
        records,
        experiment,
        dataset,
        slots=dataset.slots,
        progress=progress,
    )


class _Images:
    """The images of an evaluation set, or their tiles, one by one as batches without pixels."""

    def __init__(self, backend: Backend, dataset: Dataset, records: range) -> None:
        self._predictor, self._dataset = Predictor(backend), dataset
        self._samples = range(dataset.samples_of(len(records)))
        self._image: Prepared | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Yields a batch for each sample with ground truth; its weight is 0 without an image."""
        none, empty = np.zeros(0, np.float32), np.zeros(0, np.int32)
        for sample in self._samples:
            record = self._dataset.record_of(sample)
            self._image = self._prepared(sample, record)
            if self._image is not None or self._dataset.source.example(record) is not None:
                index = np.array([sample], np.int32)
                weight = np.array([self._image is not None], np.float32)
                yield Batch(none, none, empty, none, empty, index, weight)

    def _prepared(self, index: int, record: int) -> Prepared | None:
        """Returns the image of a sample; None if the policy leaves it out."""
        sample = self._dataset.load(index)
        if sample is None:
            return None
        try:
            return self._predictor.backend.prepare(np.ascontiguousarray(sample.image))
        except UserError as error:
            # Cases of one reason are counted together, whatever their sizes.
            reason, _, detail = error.what.partition(": ")
            self._dataset.source.reject(record, reason, detail, fix=ENLARGE_CANVAS)
            return None

    def detect(self, batch: Batch) -> Detections:
        """Returns the detections in the image of the batch that was yielded last."""
        del batch
        raw, size = _NOTHING, (1, 1)
        if self._image is not None:
            (raw,), size = self._predictor.run([self._image]), self._image.size
        classes = self._dataset.slots.index_of(raw.class_ids)
        boxes = (raw.boxes / np.tile(np.array(size, np.float64), 2)).astype(np.float32)
        arrays = boxes, raw.scores.astype(np.float32), classes, np.array(len(classes), np.int32)
        rows = [array[None] for array in (*arrays, np.zeros_like(classes), np.array(raw.finite))]
        return Detections(*map(jnp.asarray, rows))


_NOTHING = RawDetections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
