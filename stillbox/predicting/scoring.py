"""Scores a backend, such as an exported artefact, like a checkpoint.

It is a module of its own because prediction needs no evaluator.
"""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from stillbox.boxes.structures import Batch, Detections
from stillbox.evaluation.evaluator import EvaluationResult, ImageProgress, evaluate
from stillbox.evaluation.ground_truth import check_agreement, read_annotations
from stillbox.evaluation.voc import VocRules
from stillbox.experiment import schema
from stillbox.inputs.dataset import Dataset
from stillbox.predicting.backend import Backend
from stillbox.predicting.predictor import Predictor


def score_backend(
    backend: Backend,
    experiment: schema.Experiment,
    dataset: Dataset,
    progress: ImageProgress | None = None,
) -> EvaluationResult:
    """Runs a backend over an evaluation set, an image at a time, and scores its detections.

    Raises:
        UserError: label maps disagree, or there is no image.
    """
    settings = experiment.evaluation
    check_agreement((), dataset.class_names, slots=dataset.slots, other_names=backend.class_names)
    records = range(min(settings.max_examples or len(dataset), len(dataset)))
    predictor = Predictor(backend)

    return evaluate(
        lambda batch: _detect(predictor, dataset, int(batch.records[0])),
        _batches(dataset, records),
        dataset.source,
        dataset.class_names,
        slots=dataset.slots,
        metrics=settings.metrics,
        rules=VocRules.of(settings),
        records=records,
        annotations=read_annotations(dataset.annotations) if dataset.annotations else None,
        progress=progress,
    )


def _batches(dataset: Dataset, records: range) -> Iterator[Batch]:
    """Yields a batch with the number of each usable record, without pixels."""
    for record in records:
        if dataset.load(record) is not None:
            one, none = np.array([record], np.int32), np.zeros(0, np.float32)
            empty = np.zeros(0, np.int32)
            yield Batch(none, none, empty, none, empty, one, np.ones(1, np.float32))


def _detect(predictor: Predictor, dataset: Dataset, record: int) -> Detections:
    image = dataset.image(record)
    backend = predictor.backend
    (found,) = predictor.run([backend.prepare(image, where=dataset.describe(record))])
    size = np.tile(np.array(image.shape[:2], np.float64), 2)
    classes = dataset.slots.index_of(found.class_ids)
    boxes, scores = (found.boxes / size).astype(np.float32), found.scores.astype(np.float32)
    arrays = boxes[None], scores[None], classes[None], np.array([len(classes)], np.int32)
    anchors, finite = np.zeros_like(classes)[None], np.array([found.finite])
    return Detections(*map(jnp.asarray, (*arrays, anchors, finite)))
