"""Runs a detector over an evaluation set and scores it, every image exactly once."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stillbox.boxes.detections import Detections
from stillbox.devices.job import all_rows, to_host
from stillbox.evaluation.agreement import check_agreement
from stillbox.evaluation.annotations import Annotations
from stillbox.evaluation.ground_truth import TruthSource, read_truths
from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.evaluation.scores import Scores, score
from stillbox.evaluation.voc import Interpolation
from stillbox.experiment.schema.evaluation import Metric
from stillbox.inputs.batch import Batch
from stillbox.inputs.decode import ImageError, decode_image
from stillbox.records.class_slots import ClassSlots

Progress = Callable[[int, int], None]
"""Called with the number of images done and to do."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Where an evaluation spent its time. The parts overlap with nothing and are in seconds."""

    waiting: float
    """For batches from the loader."""
    detecting: float
    """For the device: compilation (in the first batch), computation, transfer."""
    scoring: float
    """In reading the ground truth and matching."""
    images: int
    """Images that were detected."""

    @property
    def total(self) -> float:
        """All of it, in seconds."""
        return self.waiting + self.detecting + self.scoring

    @property
    def images_per_second(self) -> float:
        """Images in a second of loading and detecting, scoring left out."""
        return self.images / max(self.waiting + self.detecting, 1e-9)


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Scores, and what they were computed from. The three sequences run in step."""

    scores: Scores
    """The numbers."""
    records: tuple[int, ...]
    """Record index of every image, rising."""
    truths: tuple[ImageTruth, ...]
    """Ground truth of every image."""
    results: tuple[ImageResult, ...]
    """What was found in every image."""
    left_out: int
    """Records that the data policy left out, so that nothing was scored for them."""
    warnings: tuple[str, ...]
    """What is odd about classes and label map."""
    timings: Timings
    """Where the time went."""


def evaluate(
    detect: Callable[[Batch], Detections],
    loader: Iterable[Batch],
    source: TruthSource,
    class_names: Mapping[int, str],
    *,
    slots: ClassSlots,
    metrics: Sequence[Metric] = ("coco",),
    interpolation: Interpolation = "all_points",
    records: Sequence[int] | None = None,
    annotations: Annotations | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Scores a detector.

    Label map, model and annotations are compared before the first batch, so that a wrong label map
    costs no time on the device.

    Args:
        detect: the compiled detector; it is given every batch of the loader.
        loader: the evaluation set in batches. Row r of a batch belongs to record
            `batch.records[r]`; -1 marks a row that only fills up.
        source: the same set's ground truth.
        class_names: label map id -> name.
        slots: the ids that the detector's class indices stand for.
        metrics: what is computed.
        interpolation: how Pascal VOC's metrics turn a curve into one number.
        records: the records that the loader goes through; None: all of `source`.
        annotations: the ground truth in place of that of `source`.
        progress: told after every batch.

    Raises:
        UserError: label map, model and annotations disagree, or there is no image.
        RuntimeError: the loader brought a record twice, or not at all.
    """
    wanted = range(len(source)) if records is None else records
    started = time.perf_counter()
    truths = read_truths(source, wanted, annotations)
    warnings = check_agreement(
        tuple(truths.values()),
        class_names,
        slots=slots,
        other_names=annotations.class_names if annotations else None,
    )
    reading = time.perf_counter() - started

    clock = _Clock()
    results: dict[int, ImageResult] = {}
    seen: Counter[int] = Counter()
    for batch, detections in _one_ahead(detect, loader, clock):
        for record, result in _results_of(batch, detections, truths, slots):
            seen[record] += 1
            results[record] = result
        if progress is not None:
            progress(len(results), len(truths))
    truths = _without_unusable(seen, truths, source)
    order = sorted(truths)
    started = time.perf_counter()
    ordered_truths = tuple(truths[record] for record in order)
    ordered_results = tuple(results[record] for record in order)
    scores = score(
        ordered_truths, ordered_results, class_names, metrics=metrics, interpolation=interpolation
    )
    return EvaluationResult(
        scores=scores,
        records=tuple(order),
        truths=ordered_truths,
        results=ordered_results,
        left_out=len(wanted) - len(truths),
        warnings=warnings,
        timings=Timings(
            waiting=clock.waiting,
            detecting=clock.detecting,
            scoring=reading + time.perf_counter() - started,
            images=len(order),
        ),
    )


@dataclass
class _Clock:
    waiting: float = 0.0
    detecting: float = 0.0


def _one_ahead(
    detect: Callable[[Batch], Detections], loader: Iterable[Batch], clock: _Clock
) -> Iterator[tuple[Batch, Detections]]:
    """Yields every batch with its detections as numpy arrays.

    The device starts on a batch before the host looks at the one before it, so that the two work
    at the same time.
    """
    pending: tuple[Batch, Detections] | None = None
    batches = iter(loader)
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        clock.waiting += time.perf_counter() - started
        started = time.perf_counter()
        upcoming = None if batch is None else (batch, detect(batch))
        fetched = None if pending is None else _fetch(*pending)
        clock.detecting += time.perf_counter() - started
        if fetched is not None:
            yield fetched
        if upcoming is None:
            return
        pending = upcoming


def _fetch(batch: Batch, detections: Detections) -> tuple[Batch, Detections]:
    # The images stay where they are: nothing after this looks at them.
    # Of several processes each has its own rows; all of them score all.
    host = batch._replace(records=all_rows(batch.records))
    return host, to_host(detections)


def _results_of(
    batch: Batch, detections: Detections, truths: Mapping[int, ImageTruth], slots: ClassSlots
) -> Iterator[tuple[int, ImageResult]]:
    """Yields record and result of every row that is an image."""
    for row, record in enumerate(np.asarray(batch.records).tolist()):
        if record < 0:
            continue
        if record not in truths:
            raise RuntimeError(f"the loader brought record {record}, which is not to be scored")
        truth, count = truths[record], int(detections.count[row])
        yield (
            record,
            result_of(
                truth,
                np.asarray(detections.boxes[row, :count]),
                np.asarray(detections.scores[row, :count]),
                slots.id_of(np.asarray(detections.classes[row, :count])),
            ),
        )


def result_of(
    image: ImageTruth,
    boxes: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    scores: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    class_ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> ImageResult:
    """Converts one row of `Detections` to pixels of the original image.

    Args:
        image: the image that the row belongs to.
        boxes: `[K, 4]`, normalised to the true image.
        scores: `[K]`.
        class_ids: `[K]`, label map ids.
    """
    scale = np.array([image.height, image.width, image.height, image.width], np.float64)
    return ImageResult(
        image_id=image.image_id,
        boxes=boxes.astype(np.float64) * scale,
        scores=scores.astype(np.float64),
        class_ids=class_ids,
    )


def _without_unusable(
    seen: Mapping[int, int], truths: Mapping[int, ImageTruth], source: TruthSource
) -> dict[int, ImageTruth]:
    """Returns the truths of the images that came once.

    An image that cannot be decoded never becomes a row of a batch where the data policy drops such
    records. Any other record that is missing, or came twice, is a fault of the loader.
    """
    twice = sorted(record for record, count in seen.items() if count > 1)
    missing = sorted(set(truths) - set(seen))
    lost = [record for record in missing if _has_image(source, record)]
    if twice or lost:
        raise RuntimeError(
            f"the loader brought {len(twice)} records more than once (first {twice[:3]}) and "
            f"{len(lost)} not at all (first {lost[:3]}): the scores would be wrong"
        )
    return {record: truth for record, truth in truths.items() if record in seen}


def _has_image(source: TruthSource, record: int) -> bool:
    example = source.example(record)
    if example is None:
        return False
    try:
        decode_image(example.encoded)
    except ImageError:
        return False
    return True
