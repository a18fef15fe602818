"""Batches of records, prepared ahead by threads, and counts over them."""

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import NamedTuple, Required, TypedDict

import numpy as np
from jax.profiler import TraceAnnotation
from jaxtyping import Float32, Int32, UInt8
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.boxes.structures import Batch
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.dataset import Dataset
from stillbox.inputs.decode import ImageError
from stillbox.inputs.resize import (
    ENLARGE_CANVAS,
    Placement,
    draw_reduced,
    misfit,
    place_boxes,
    place_image,
    resize_into,
)
from stillbox.inputs.sample import Pixels, Sample
from stillbox.printing import count_text


@dataclass
class InputStats:
    """Counts over all batches of a loader so far, repeated epochs included."""

    max_boxes: int
    """Boxes in a row of the batch; others are truncated."""
    images: int = 0
    left_out: int = 0
    """Rows without a usable record or image; not counted elsewhere."""
    boxes: int = 0
    """Boxes after augmentation."""
    truncated_boxes: int = 0
    truncated_images: int = 0
    """Images with truncated boxes."""
    most_boxes: int = 0
    """Most boxes of one image."""
    _lock: AbstractContextManager[bool] = field(
        default_factory=threading.Lock, repr=False, compare=False
    )

    @property
    def truncated_share(self) -> float:
        """Share of all boxes that was truncated."""
        return self.truncated_boxes / self.boxes if self.boxes else 0.0

    def add_image(self, boxes: int) -> None:
        """Counts an image with a number of boxes."""
        beyond = max(boxes - self.max_boxes, 0)
        with self._lock:
            self.images += 1
            self.boxes += boxes
            self.truncated_boxes += beyond
            self.truncated_images += beyond > 0
            self.most_boxes = max(self.most_boxes, boxes)

    def add_left_out(self) -> None:
        """Counts a row that stays empty."""
        with self._lock:
            self.left_out += 1

    def take(self) -> dict[str, int]:
        """Returns the counts by name, for `add`, and begins again."""
        with self._lock:
            counts = {name: getattr(self, name) for name in _COUNTS}
            vars(self).update(dict.fromkeys(_COUNTS, 0))
        return counts

    def add(self, counts: Mapping[str, int]) -> None:
        """Adds counts over other batches."""
        with self._lock:
            most = max(self.most_boxes, counts["most_boxes"])
            for name in _COUNTS:
                setattr(self, name, getattr(self, name) + counts[name])
            self.most_boxes = most

    def summary(self) -> str:
        """Returns the counts in one line."""
        parts = [f"inputs: {count_text(self.images, 'image')} with {count_text(self.boxes, 'box')}"]
        if self.truncated_boxes:
            parts.append(
                f"{count_text(self.truncated_boxes, 'box')} ({self.truncated_share:.2%}) in "
                f"{count_text(self.truncated_images, 'image')} cut off beyond "
                f"max_boxes={self.max_boxes}; the fullest image has {self.most_boxes}"
            )
        if self.left_out:
            parts.append(f"{count_text(self.left_out, 'unusable record')} left out")
        return "; ".join(parts)


_COUNTS = [field.name for field in fields(InputStats) if field.name not in ("max_boxes", "_lock")]

Memory = NDArray[np.uint8]
"""Bytes that hold the arrays of a batch."""

# Arrays that begin at such bytes are used by XLA's CPU backend without a copy.
_ALIGNED = 64


class BatchShape(NamedTuple):
    """What determines the size of a batch in memory."""

    images: int
    """Rows of this process."""
    boxes: int
    """Of an image, at most."""
    canvas: tuple[int, int]
    """Height and width of the network input in pixels."""
    pixels: str
    """Type of the images."""
    channels: int = 3
    """Of the images."""

    @property
    def arrays(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each array of a `Batch`, in its order."""
        count, boxes = self.images, self.boxes
        return [
            ((count, *self.canvas, self.channels), self.pixels),
            ((count, boxes, 4), "float32"),
            ((count, boxes), "int32"),
            ((count, boxes), "float32"),
            ((count, 2), "int32"),
            ((count,), "int32"),
            ((count,), "float32"),
        ]

    @property
    def starts(self) -> list[int]:
        """Byte at which each array begins in memory that holds all of them, and their end."""
        sizes = (math.prod(shape) * np.dtype(kind).itemsize for shape, kind in self.arrays)
        return list(accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0))

    def arrays_in(self, memory: Memory | None) -> "_Arrays":
        """Returns the arrays that lie in `memory`, or new ones with any content."""
        if memory is None:
            return _Arrays(*(np.empty(*spec) for spec in self.arrays))
        pairs = zip(self.arrays, self.starts[:-1], strict=True)
        return _Arrays(*(np.ndarray(*spec, buffer=memory, offset=start) for spec, start in pairs))


class _Arrays(NamedTuple):
    """A batch while it is being filled."""

    images: Float32[np.ndarray, "B H W C"] | UInt8[np.ndarray, "B H W C"]
    boxes: Float32[np.ndarray, "B N 4"]
    classes: Int32[np.ndarray, "B N"]
    weights: Float32[np.ndarray, "B N"]
    true_sizes: Int32[np.ndarray, "B 2"]
    records: Int32[np.ndarray, " B"]
    image_weights: Float32[np.ndarray, " B"]


class BatchRow(NamedTuple):
    """The sample of one row of a batch."""

    sample: int
    """Index of the sample in the data set; -1 for a padding row."""
    epoch: int = 0
    """Pass over the samples that it belongs to."""
    step: int = 0
    """Number of the batch."""
    copy: int = 0
    """Earlier draws of the sample in its epoch."""


class Job(NamedTuple):
    """A batch to make."""

    step: int
    """Number of the batch."""
    memory: Memory | None = None
    """Room for the batch; None: in new memory."""


class BatchOptions(TypedDict, total=False):
    """Arguments of `BatchMaker` that loaders pass on."""

    batch_size: Required[int]
    workers: int
    prefetch: int
    process_index: int
    process_count: int
    pixels: str
    reduced_decoding: bool


class BatchMaker:
    """Base of the loaders; a subclass selects the records of each batch.

    With P processes each makes the rows `p * B / P ...` of every global batch of B.

    Args:
        batch_size: images of a batch over all processes.
        workers: threads that load and augment; 0: the caller's thread does.
        prefetch: batches that are made ahead.
        pixels: type of the images, `float32` or `uint8`, as in `schema.Data`.
        reduced_decoding: decode images that are shrunk much at a fraction of their size, likewise.

    Raises:
        UserError: the batch cannot be divided among the processes.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        workers: int = 2,
        prefetch: int = 2,
        process_index: int = 0,
        process_count: int = 1,
        pixels: str = "float32",
        reduced_decoding: bool = False,
    ) -> None:
        if batch_size < 1 or batch_size % process_count:
            problem = f"a batch of {batch_size} cannot be divided among {process_count} processes"
            raise UserError(
                problem, where="batch_size", fix=f"make it a multiple of {process_count}"
            )
        self.dataset = dataset
        self.stats = InputStats(dataset.max_boxes)
        self._batch_size = batch_size
        self._pixels, self._reduced_decoding = np.dtype(pixels), reduced_decoding
        self._workers, self._prefetch = workers, max(prefetch, 1)
        local = batch_size // process_count
        self._local = slice(process_index * local, (process_index + 1) * local)

    def batch(self, step: int) -> Batch:
        """Makes a batch, determined by its number, in the caller's thread.

        Raises:
            UserError: a record is bad and the policy is `fail`.
        """
        return self._batch(Job(step))

    def _batch(self, job: Job) -> Batch:
        arrays, rows = self._begin(job)
        self._fill_rows(arrays, rows, range(len(rows)))
        return Batch(*arrays)

    def shape(self, canvas: tuple[int, int]) -> BatchShape:
        """Returns the shape of this process's part of a batch with a network input in pixels."""
        count = self._local.stop - self._local.start
        channels = self.dataset.kind.channels
        return BatchShape(count, self.dataset.max_boxes, canvas, self._pixels.name, channels)

    def _rows(self, step: int) -> Sequence[BatchRow]:
        raise NotImplementedError

    def _augment(self, sample: Sample, row: BatchRow) -> Sample:
        return sample

    def _resize_generator(self, row: BatchRow) -> Generator | None:
        """Returns the resizer's source of randomness, if any."""
        return None

    def _resizer(self, row: BatchRow) -> schema.Resizer:
        """Returns the resizer of a row; all rows of a batch share the input size."""
        return self.dataset.resizer

    def _begin(self, job: Job) -> tuple[_Arrays, Sequence[BatchRow]]:
        """Returns a batch without images, and its rows."""
        rows = self._rows(job.step)
        canvas = self._resizer(rows[0]).input_size
        arrays = self.shape(canvas).arrays_in(job.memory)
        # Not the images: every pixel is written once, by the worker that holds it in its cache.
        for zeros in (arrays.boxes, arrays.classes, arrays.weights, arrays.image_weights):
            zeros.fill(0)
        arrays.true_sizes[:] = canvas
        arrays.records.fill(-1)
        return arrays, rows

    def _fill_rows(self, arrays: _Arrays, rows: Sequence[BatchRow], places: Iterable[int]) -> None:
        for place in places:
            row = rows[place]
            try:
                with TraceAnnotation("make an image ready"):
                    self._fill_row(arrays, place, row)
            except UserError:  # names the record already
                raise
            except Exception as error:
                where = self.dataset.source.location(self.dataset.record_of(row.sample))
                error.add_note(f"while loading {where}")
                raise

    def _fill_row(self, arrays: _Arrays, place: int, row: BatchRow) -> None:
        sample = self.dataset.open(row.sample) if row.sample >= 0 else None
        if sample is None:
            self._leave_out(arrays, place, row)
            return
        try:
            sample = self._augment(sample, row)
            placement = self._draw(arrays.images[place], sample, row)
        except ImageError as error:
            self.dataset.reject(row.sample, error)
            placement = None
        if placement is None:
            self._leave_out(arrays, place, row)
            return
        # From the frame of the image to the frame of the padded canvas.
        boxes, visible = place_boxes(sample.boxes, placement, self._resizer(row))
        boxes, sample = boxes[visible], sample.select(visible)
        count = min(len(boxes), self.dataset.max_boxes)
        arrays.boxes[place, :count] = boxes[:count]
        arrays.classes[place, :count] = self.dataset.slots.index_of(sample.class_ids[:count])
        arrays.weights[place, :count] = sample.weights[:count]
        arrays.true_sizes[place] = placement.shown
        arrays.records[place] = row.sample
        arrays.image_weights[place] = 1
        self.stats.add_image(len(sample.boxes))

    def _draw(self, out: Pixels, sample: Sample, row: BatchRow) -> Placement | None:
        """Resizes the image into `out`, and returns its place; None: it does not fit."""
        resizer = self._resizer(row)
        if reason := misfit(sample.size, resizer):
            # Not checked earlier: augmentations may change the size.
            self.dataset.source.reject(
                self.dataset.record_of(row.sample),
                "image does not fit the canvas",
                reason,
                fix=ENLARGE_CANVAS,
            )
            return None
        placement = place_image(sample.size, resizer, self._resize_generator(row))
        if not self._reduced_decoding or not draw_reduced(sample, resizer, out, placement):
            resize_into(sample.decoded().image, resizer, out, placement)
        return placement

    def _leave_out(self, arrays: _Arrays, place: int, row: BatchRow) -> None:
        """Finishes a row without an image; its weight is 0 already."""
        arrays.images[place] = 0
        if row.sample < 0:
            return
        self.stats.add_left_out()
        if self.dataset.source.example(self.dataset.record_of(row.sample)) is not None:
            # The record is readable, its image is not: scorers distinguish the two.
            arrays.records[place] = row.sample

    def make(self, jobs: Iterable[Job]) -> Iterator[Batch]:
        """Yields batches in the order of the jobs, `prefetch` of them made ahead.

        Raises:
            UserError: a record is bad and the policy is `fail`.
        """
        if self._workers == 0:
            yield from map(self._batch, jobs)
            return
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="stillbox-inputs")
        ahead: deque[tuple[_Arrays, list[Future[None]]]] = deque()
        try:
            for job in jobs:
                ahead.append(self._submit(pool, job))
                if len(ahead) > self._prefetch:
                    yield _finished(*ahead.popleft())
            while ahead:
                yield _finished(*ahead.popleft())
        finally:
            # No thread runs after the loop, even if break, an error or Ctrl-C has ended it.
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, pool: ThreadPoolExecutor, job: Job) -> tuple[_Arrays, list[Future[None]]]:
        arrays, rows = self._begin(job)
        # Two chunks a worker: little overhead, balanced load.
        size = -(-len(rows) // (2 * self._workers))
        chunks = [range(len(rows))[start : start + size] for start in range(0, len(rows), size)]
        return arrays, [pool.submit(self._fill_rows, arrays, rows, chunk) for chunk in chunks]


def _finished(arrays: _Arrays, tasks: list[Future[None]]) -> Batch:
    for task in tasks:
        task.result()
    return Batch(*arrays)
