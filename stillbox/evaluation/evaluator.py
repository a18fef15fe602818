"""Runs a detector over an evaluation set and scores it, every image exactly once."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stillbox.boxes.structures import Batch, Detections
from stillbox.devices.job import gather_rows, to_host
from stillbox.evaluation.analysis import Analysis, analyse
from stillbox.evaluation.ground_truth import Annotations, TruthSource, check_agreement, read_truths
from stillbox.evaluation.limits import NO_LIMITS, LimitTable
from stillbox.evaluation.results import ImageResult, ImageTruth, RawDetections
from stillbox.evaluation.scores import Scores, score
from stillbox.evaluation.views import Views
from stillbox.evaluation.voc import VocRules
from stillbox.experiment.schema.training import Metric
from stillbox.inputs.tiles import ImageTiles
from stillbox.records.label_map import ClassSlots

ImageProgress = Callable[[int, int], None]
"""Called with the number of images done and in all."""


@dataclass(kw_only=True)
class Timings:
    """The parts of an evaluation, in seconds; they do not overlap."""

    waiting: float = 0.0
    """For batches from the loader."""
    detecting: float = 0.0
    """For the device: compilation (in the first batch), computation, transfer."""
    scoring: float = 0.0
    """For reading the ground truth and matching."""
    images: int = 0

    @contextmanager
    def scored(self) -> Iterator[None]:
        """Counts the time in which it is entered as `scoring`."""
        started = time.perf_counter()
        yield
        self.scoring += time.perf_counter() - started

    @property
    def images_per_second(self) -> float:
        """Images in a second of loading and detecting, without scoring."""
        return self.images / max(self.waiting + self.detecting, 1e-9)


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Scores, with the record, the ground truth and the result of every image."""

    scores: Scores
    records: tuple[int, ...]
    """Record indices, ascending."""
    truths: tuple[ImageTruth, ...]
    results: tuple[ImageResult, ...]
    left_out: int
    """Records that the data policy left out; they are not scored."""
    warnings: tuple[str, ...]
    timings: Timings
    class_names: Mapping[int, str]
    """Label map id -> name."""
    limits: LimitTable = NO_LIMITS
    """Limits of the program beside the scored images."""
    unfound: tuple[str, ...] = ()
    """What is likely the reason for each class with an AP of 0, one sentence a class."""

    @cached_property
    def analysis(self) -> Analysis:
        """Thresholds, confusions, mistakes; computed when first used."""
        return analyse(
            self.truths,
            self.results,
            self.class_names,
            # As the metrics that are computed; Open Images' ignore both.
            crowds=self.scores.coco is not None or self.scores.voc is None,
            difficult=self.scores.coco is None,
        )

    def shown_from(self, min_score: float | None) -> float:
        """Returns the least score of drawn detections: `min_score`, or else the best threshold."""
        best = self.analysis.overall.threshold if min_score is None else min_score
        return 0.5 if best is None else best


def evaluate(
    detect: Callable[[Batch], Detections],
    loader: Iterable[Batch],
    source: TruthSource,
    class_names: Mapping[int, str],
    *,
    slots: ClassSlots,
    metrics: Sequence[Metric] = ("coco",),
    rules: VocRules | None = None,
    records: Sequence[int] | None = None,
    annotations: Annotations | None = None,
    tiles: ImageTiles | None = None,
    progress: ImageProgress | None = None,
) -> EvaluationResult:
    """Scores a detector.

    Label map, model and annotations are compared before the first batch, so a wrong label map costs
    no time on the device.

    Args:
        loader: the evaluation set in batches. Row r of a batch is the image of record
            `batch.records[r]`, or the tile of this number; -1 marks padding, a weight of 0 an image
            that the policy left out.
        slots: the ids of the detector's class indices.
        records: the records in the loader; None: all of `source`.
        annotations: the ground truth in place of the records'.
        tiles: what the images of all of `source` are cut into; the detections in the tiles of an
            image are merged. None: rows are whole images.

    Raises:
        UserError: label map, model and annotations disagree, there is no image, or the predictions
            for one are not finite.
        RuntimeError: the loader brought an image or a tile twice, or not at all.
    """
    records = range(len(source)) if records is None else records
    timings = Timings()
    with timings.scored():
        truths = read_truths(source, records, annotations)
        warnings = check_agreement(
            tuple(truths.values()),
            class_names,
            slots=slots,
            other_names=annotations.class_names if annotations else None,
        )
    results = _detect_all(detect, loader, Views(truths, tiles), slots, timings, progress)
    timings.images = len(results)
    with timings.scored():
        scored = tuple(truths[record] for record in results), tuple(results.values())
        scores = score(*scored, class_names, metrics=metrics, rules=rules)
    return EvaluationResult(
        scores=scores,
        records=tuple(results),
        truths=scored[0],
        results=scored[1],
        left_out=len(records) - len(results),
        warnings=warnings,
        timings=timings,
        class_names=class_names,
    )


def _detect_all(
    detect: Callable[[Batch], Detections],
    loader: Iterable[Batch],
    views: Views,
    slots: ClassSlots,
    timings: Timings,
    progress: ImageProgress | None,
) -> dict[int, ImageResult]:
    """Returns the detections by record, in order, without images that the policy left out."""
    for batch, detections in _one_ahead(detect, loader, timings):
        for row, sample in enumerate(np.asarray(batch.records).tolist()):
            if sample >= 0:
                views.add(sample, _row(batch, detections, row, slots, views.size(sample)))
        if progress is not None:
            progress(len(views.results), len(views.truths))
    views.check_complete()
    ordered = {record: views.results[record] for record in sorted(views.results)}
    return {record: result for record, result in ordered.items() if result is not None}


def _one_ahead(
    detect: Callable[[Batch], Detections], loader: Iterable[Batch], timings: Timings
) -> Iterator[tuple[Batch, Detections]]:
    """Yields every batch with its detections as numpy arrays.

    The device starts on the next batch before the host processes this one, so that both work at the
    same time.
    """
    pending: tuple[Batch, Detections] | None = None
    batches = iter(loader)
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        timings.waiting += time.perf_counter() - started
        started = time.perf_counter()
        upcoming = None if batch is None else (batch, detect(batch))
        fetched = None if pending is None else _fetch(*pending)
        timings.detecting += time.perf_counter() - started
        if fetched is not None:
            yield fetched
        if upcoming is None:
            return
        pending = upcoming


def _fetch(batch: Batch, detections: Detections) -> tuple[Batch, Detections]:
    # Each process has its own rows, and every process scores all of them. Images are not fetched.
    records, weights = gather_rows(batch.records), gather_rows(batch.image_weights)
    return batch._replace(records=records, image_weights=weights), to_host(detections)


def _row(
    batch: Batch, detections: Detections, row: int, slots: ClassSlots, size: tuple[int, int]
) -> RawDetections | None:
    """Returns the detections of a row in pixels of its image or tile, which has a size.

    None: the data policy left the image out.
    """
    if not batch.image_weights[row]:
        return None
    filled = slice(int(detections.count[row]))
    return RawDetections(
        boxes=np.asarray(detections.boxes[row, filled], np.float64)
        * np.array(size * 2, np.float64),
        scores=np.asarray(detections.scores[row, filled], np.float64),
        class_ids=slots.id_of(np.asarray(detections.classes[row, filled])),
        finite=detections.finite is None or bool(detections.finite[row]),
    )
