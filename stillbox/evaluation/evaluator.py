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
from stillbox.evaluation.results import ImageResult, ImageTruth, not_finite
from stillbox.evaluation.scores import Scores, score
from stillbox.evaluation.voc import VocRules
from stillbox.experiment.schema.training import Metric
from stillbox.printing import count_text
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
    progress: ImageProgress | None = None,
) -> EvaluationResult:
    """Scores a detector.

    Label map, model and annotations are compared before the first batch, so a wrong label map costs
    no time on the device.

    Args:
        loader: the evaluation set in batches. Row r of a batch belongs to record
            `batch.records[r]`; -1 marks padding, a weight of 0 an image that the policy left out.
        slots: the ids of the detector's class indices.
        records: the records in the loader; None: all of `source`.
        annotations: the ground truth in place of the records'.

    Raises:
        UserError: label map, model and annotations disagree, there is no image, or the predictions
            for one are not finite.
        RuntimeError: the loader brought a record twice, or not at all.
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
    results = _detect_all(detect, loader, truths, slots, timings, progress)
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
        warnings=(*warnings, *(scores.coco.warnings() if scores.coco else ())),
        timings=timings,
        class_names=class_names,
    )


def _detect_all(
    detect: Callable[[Batch], Detections],
    loader: Iterable[Batch],
    truths: Mapping[int, ImageTruth],
    slots: ClassSlots,
    timings: Timings,
    progress: ImageProgress | None,
) -> dict[int, ImageResult]:
    """Returns the detections by record, in order, without images that the policy left out."""
    results: dict[int, list[ImageResult | None]] = {}
    for batch, detections in _one_ahead(detect, loader, timings):
        for record, result in _results_of(batch, detections, truths, slots):
            results.setdefault(record, []).append(result)
        if progress is not None:
            progress(len(results), len(truths))
    _check_complete(results, truths)
    firsts = {record: results[record][0] for record in sorted(results)}
    return {record: result for record, result in firsts.items() if result is not None}


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


def _results_of(
    batch: Batch, detections: Detections, truths: Mapping[int, ImageTruth], slots: ClassSlots
) -> Iterator[tuple[int, ImageResult | None]]:
    """Yields each record with its detections; None: the data policy left its image out."""
    for row, record in enumerate(np.asarray(batch.records).tolist()):
        if record < 0:
            continue
        if record not in truths:
            raise RuntimeError(f"the loader brought record {record}, which is not to be scored")
        if not batch.image_weights[row]:
            yield record, None
            continue
        if detections.finite is not None and not detections.finite[row]:
            raise not_finite(f"image {truths[record].image_id}")
        filled = slice(int(detections.count[row]))
        image = truths[record]
        yield (
            record,
            ImageResult(
                image_id=image.image_id,
                boxes=np.asarray(detections.boxes[row, filled], np.float64)
                * np.array([image.height, image.width] * 2, np.float64),
                scores=np.asarray(detections.scores[row, filled], np.float64),
                class_ids=slots.id_of(np.asarray(detections.classes[row, filled])),
            ),
        )


def _check_complete(
    results: Mapping[int, Sequence[ImageResult | None]], truths: Mapping[int, ImageTruth]
) -> None:
    """Checks that every record came once. Anything else is a bug in the loader."""
    twice = sorted(record for record, brought in results.items() if len(brought) > 1)
    lost = sorted(truths.keys() - results.keys())
    if twice or lost:
        raise RuntimeError(
            f"the loader brought {count_text(len(twice), 'record')} more than once (first "
            f"{twice[:3]}) and {len(lost)} not at all (first {lost[:3]}): the scores would be wrong"
        )
