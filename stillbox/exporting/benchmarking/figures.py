"""The row of a table from the measurements of a process, and from detections of two processes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stillbox.evaluation.results import ImageResult, iou_matrix
from stillbox.evaluation.runtimes import RuntimeRow
from stillbox.exporting.benchmarking.tasks import Measured

_LEAST_OVERLAP = 0.5


def with_figures(row: RuntimeRow, measured: Measured) -> RuntimeRow:
    """Returns a row with what was measured."""
    median, late = np.percentile(measured.seconds, (50, 99)).tolist()
    return replace(
        row,
        runtime=f"{row.runtime} {measured.version}",
        bytes=measured.bytes,
        load_seconds=measured.load_seconds,
        memory_bytes=measured.memory_bytes,
        p50_ms=median * 1000,
        p99_ms=late * 1000,
        resizing_ms=float(np.median(measured.resizing)) * 1000,
        images_per_second=len(measured.seconds) / sum(measured.seconds),
        runs=len(measured.seconds),
        scores=measured.scores,
    )


def compare(
    row: RuntimeRow,
    checkpoint: Sequence[ImageResult],
    artefact: Sequence[ImageResult],
    min_score: float,
) -> RuntimeRow:
    """Returns a row with the largest differences of an artefact to its checkpoint.

    Each detection of the checkpoint, the surest first, is paired with the one of its class that
    overlaps it most and has no pair yet.

    Args:
        row: of the artefact.
        checkpoint: detections by image.
        artefact: those in the same images.
        min_score: least score of a detection of the checkpoint.
    """
    pairs = [
        pair
        for theirs, mine in zip(checkpoint, artefact, strict=True)
        for pair in _pairs(theirs.at_least(min_score), mine)
    ]
    found = [pair for pair in pairs if pair is not None]
    return replace(
        row,
        compared=len(pairs),
        found=len(found),
        box_difference=max((box for box, _ in found), default=None),
        score_difference=max((score for _, score in found), default=None),
    )


def _pairs(theirs: ImageResult, mine: ImageResult) -> Iterator[tuple[float, float] | None]:
    """Yields the differences of boxes and scores of each of their detections; None: not found."""
    overlaps = iou_matrix(theirs.boxes, mine.boxes)
    overlaps[theirs.class_ids[:, None] != mine.class_ids] = 0.0
    for row, overlap in enumerate(overlaps):
        if not len(overlap) or overlap.max() < _LEAST_OVERLAP:
            yield None
            continue
        column = int(overlap.argmax())
        overlaps[:, column] = 0.0
        yield (
            float(np.abs(theirs.boxes[row] - mine.boxes[column]).max()),
            float(abs(theirs.scores[row] - mine.scores[column])),
        )
