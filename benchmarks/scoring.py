"""Seconds from the detections of a set to its scores, beside three libraries of COCO's metrics.

    python benchmarks/scoring.py [--images 5000] [--found 100]

Ours takes in what the libraries leave out too: the analysis of the report (thresholds, confusions,
kinds of mistakes with their costs, sizes) and the file of detections. Peers are installed into an
environment of their own in the cache folder.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from environments import ask_peer, peer_python
from measuring import machine, show
from numpy.typing import NDArray
from rich.table import Table

from stillbox.evaluation.analysis import analyse
from stillbox.evaluation.coco import encode_results
from stillbox.evaluation.results import ImageResult, ImageTruth
from stillbox.evaluation.scores import score
from stillbox.experiment.schema.training import Metric

CLASSES = 80
Rows = NDArray[np.float64]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--found", type=int, default=100, help="detections of an image")
    arguments = parser.parse_args()
    truths, detections = random_set(arguments.images, arguments.found)
    counts = f"{arguments.images:,} images, {len(truths):,} boxes, {len(detections):,} detections"
    table = Table(title=f"{counts}, {CLASSES} classes; {machine()}")
    for column in ("what", "s", "AP"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, (seconds, ap) in (
        own_times(truths, detections) | peer_times(truths, detections)
    ).items():
        table.add_row(name, f"{seconds:.2f}", "" if ap is None else f"{ap:.6f}")
    show(table)


def random_set(images: int, detections: int, seed: int = 0) -> tuple[Rows, Rows]:
    """Returns boxes like COCO's in number and size, and detections, half with the right class.

    Returns:
        `[N, 6]` image, x, y, width, height, class, and `[D, 7]` with the score before the class.
    """
    rng = np.random.default_rng(seed)
    counts = rng.poisson(7.3, images).clip(1)
    owner = np.repeat(np.arange(images), counts)
    sizes = rng.lognormal(3.8, 1.0, (len(owner), 2)).clip(4, 400)
    boxes = np.concatenate([rng.uniform(0, 400, (len(owner), 2)), sizes], axis=1)
    classes = rng.integers(1, CLASSES + 1, len(owner))
    near = np.repeat(np.cumsum(counts) - counts, detections) + rng.integers(
        0, np.repeat(counts, detections)
    )
    moved = boxes[near] + rng.normal(0, 8, (len(near), 4))
    moved[:, 2:] = moved[:, 2:].clip(1)
    right = rng.random(len(near)) < 0.5
    named = np.where(right, classes[near], rng.integers(1, CLASSES + 1, len(near)))
    return (
        np.column_stack([owner + 1, boxes, classes]),
        np.column_stack([owner[near] + 1, moved, rng.random(len(near)), named]),
    )


def own_times(truths: Rows, detections: Rows) -> dict[str, tuple[float, float | None]]:
    """Returns seconds and AP of what an evaluation does after the last image."""
    expected, results = _truths(truths), _results(detections)
    names = {class_id: f"class {class_id}" for class_id in range(1, CLASSES + 1)}

    def average_precision(metric: Metric) -> object:
        return score(expected, results, names, metrics=[metric]).summary.get("AP")

    return {
        "ours, COCO": _timed(lambda: average_precision("coco")),
        "ours, Pascal VOC": _timed(lambda: average_precision("pascal_voc")),
        "ours, analysis of the report": _timed(lambda: analyse(expected, results, names)),
        "ours, detections.json": _timed(lambda: encode_results(results)),
    }


def peer_times(truths: Rows, detections: Rows) -> dict[str, tuple[float, float | None]]:
    """Returns seconds and AP of each library; nothing if they cannot be installed."""
    python = peer_python("scoring", "pycocotools", "faster-coco-eval>=1.8", "hotcoco>=1.3")
    if python is None:
        return {}
    times = ask_peer(python, "scoring_peers.py", truths=truths, found=detections)
    return {name: tuple(pair) for name, pair in times.items()}


def _timed(work: Callable[[], object]) -> tuple[float, float | None]:
    """Returns the seconds of `work`, and its result if that is a number."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result if isinstance(result, float) else None


def _corners(boxes: Rows) -> Rows:
    x, y, width, height = boxes.T
    return np.stack([y, x, y + height, x + width], axis=1)


def _truths(rows: Rows) -> list[ImageTruth]:
    return [
        ImageTruth(
            image_id=str(int(image)),
            width=800,
            height=800,
            boxes=_corners(row[:, 1:5]),
            class_ids=row[:, 5].astype(np.int64),
            is_crowd=np.zeros(len(row), np.bool_),
            is_difficult=np.zeros(len(row), np.bool_),
            area=np.full(len(row), np.nan),
        )
        for image, row in _by_image(rows)
    ]


def _results(rows: Rows) -> list[ImageResult]:
    return [
        ImageResult(
            image_id=str(int(image)),
            boxes=_corners(row[:, 1:5]),
            scores=row[:, 5].copy(),
            class_ids=row[:, 6].astype(np.int64),
        )
        for image, row in _by_image(rows)
    ]


def _by_image(rows: Rows) -> list[tuple[float, Rows]]:
    images, starts = np.unique(rows[:, 0], return_index=True)
    return list(zip(images.tolist(), np.split(rows, starts[1:]), strict=True))


if __name__ == "__main__":
    main()
