"""Loaders of training and evaluation, and the transfer of batches to the device ahead of their use.

A batch is a pure function of its number. Order and randomness are pure functions of (seed, epoch,
sample), where a sample is a record or a tile of its image. Both use Philox, a counter-based
generator: any epoch's order and any sample's numbers are computed without those before them.
Repeated and resumed runs, with any number of processes, see the same samples.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Unpack

import numpy as np
from jax.profiler import TraceAnnotation
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from stillbox.boxes.structures import Batch
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.imports import imports_of
from stillbox.inputs.augment import apply_augmentations, in_force
from stillbox.inputs.augment.geometry import labels_without_slots
from stillbox.inputs.batching import BatchMaker, BatchOptions, BatchRow, Job
from stillbox.inputs.dataset import Dataset, open_dataset
from stillbox.inputs.processes import InputProcesses
from stillbox.inputs.repeats import Draws, repeated
from stillbox.inputs.sample import Sample
from stillbox.inputs.tiles import ImageTiles

# Second word of the key, which keeps the numbers of the uses apart.
_ORDER, _AUGMENTATION, _RESIZING, _INPUT_SIZE, _REPEATS = 1, 2, 3, 4, 5


def permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """Returns the order of an epoch, a permutation of `size` samples.

    numpy guarantees the raw words of a bit generator, but not `Generator.permutation`: an order by
    raw words does not change with numpy's version.
    """
    return np.argsort(_philox(seed, _ORDER, epoch, 0).random_raw(size), kind="stable")


def sample_generator(seed: int, epoch: int, index: int, copy: int = 0) -> Generator:
    """Returns the generator that augments a sample, or a further copy of it, in an epoch."""
    return Generator(_philox(seed, _AUGMENTATION, epoch, index, copy))


def resize_generator(seed: int, epoch: int, index: int, copy: int = 0) -> Generator:
    """Returns the generator that resizes a sample in an epoch, independent of augmentations."""
    return Generator(_philox(seed, _RESIZING, epoch, index, copy))


def _philox(seed: int, use: int, epoch: int, index: int, copy: int = 0) -> Philox:
    # The generator increments the first word of the counter, so no two of these overlap.
    key = np.array([seed % 2**64, use], np.uint64)
    return Philox(key=key, counter=np.array([0, copy, epoch, index], np.uint64))


class TrainLoader(BatchMaker):
    """An endless sequence of samples, cut into batches.

    Sample k of the sequence is sample `permutation(seed, epoch)[k % n]` of the data set in epoch
    `k // n`; batch s holds the samples from `s * batch_size` on. A batch may span epochs, so that
    every sample counts equally and every batch is full. With the factors of the data set an epoch
    has as many samples, some of them repeatedly. Nothing depends on threads or on earlier calls.

    Args:
        augmentations: applied in this order, with numbers drawn from (seed, epoch, sample).
        shuffle: a new order every epoch; otherwise the order of the data set.
        repeat_first_batch: make batch 0 once and return it for every number.
        train_steps: batches of the whole run; some augmentations are left out at its end. 0: no
            limit.
        resizers: one is drawn for each batch, as likely as the others; empty: the data set's.
        processes: make the batches in place of this process.

    Raises:
        UserError: the batch cannot be divided among the processes, or an augmentation names a
            class that the model does not have.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        augmentations: Sequence[schema.Augmentation] = (),
        seed: int = 0,
        shuffle: bool = True,
        repeat_first_batch: bool = False,
        train_steps: int = 0,
        resizers: Sequence[schema.Resizer] = (),
        processes: InputProcesses | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        super().__init__(dataset, **options)
        _refuse_unknown_labels(augmentations, dataset)
        self._augmentations, self._seed, self._shuffle = tuple(augmentations), seed, shuffle
        self._repeats, self._resizers = repeat_first_batch, tuple(resizers) or (dataset.resizer,)
        self._processes = processes
        self._end = min((end for end in (train_steps, self.steps) if end), default=None)
        # Two: a batch may span two epochs.
        self._order = lru_cache(maxsize=2)(self._order_of)

    @property
    def steps(self) -> int | None:
        """Batches until the last epoch of `dataset.num_epochs` ends; None: no end."""
        if self.dataset.num_epochs == 0:
            return None
        return -(-len(self.dataset) * self.dataset.num_epochs // self._batch_size)

    def images(self, steps: int) -> int:
        """Returns the number of images in the first `steps` batches, repetitions included."""
        images = steps * self._batch_size
        last = len(self.dataset) * self.dataset.num_epochs
        return min(images, last) if last else images

    def iterate(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Yields the batches from `start` to before `stop`; closing it ends the threads.

        Raises:
            UserError: a record is bad and the policy is `fail`.
        """
        stop = min((end for end in (stop, self.steps) if end is not None), default=None)
        numbers = itertools.count(start) if stop is None else iter(range(start, stop))
        if self._repeats:
            return self._repeat(numbers)
        if self._processes is None:
            return self.make(map(Job, numbers))
        sizes = (self.shape(resizer.input_size).starts[-1] for resizer in self._resizers)
        return self._processes.make(self, numbers, most_bytes=max(sizes), ahead=self._prefetch)

    def _repeat(self, numbers: Iterator[int]) -> Iterator[Batch]:
        (first,) = self.make([Job(0)])
        for _ in numbers:
            yield first

    def _order_of(self, epoch: int) -> Draws:
        size, factors = len(self.dataset), self.dataset.factors
        order = permutation(self._seed, epoch, size) if self._shuffle else np.arange(size)
        if factors is None:
            return Draws(order, np.broadcast_to(np.int64(0), size))
        words = _philox(self._seed, _REPEATS, epoch, 0).random_raw(size + 1)
        return repeated(order, factors, words, mix=self._shuffle)

    def _rows(self, step: int) -> Sequence[BatchRow]:
        size = len(self.dataset)
        step = 0 if self._repeats else step
        first = step * self._batch_size
        rows = []
        for sample in range(first + self._local.start, first + self._local.stop):
            epoch, place = divmod(sample, size)
            over = self.dataset.num_epochs and epoch >= self.dataset.num_epochs
            draws = self._order(epoch)
            index = -1 if over else int(draws.samples[place])
            rows.append(BatchRow(index, epoch, step, int(draws.copies[place])))
        return rows

    def _augment(self, sample: Sample, row: BatchRow) -> Sample:
        rng = sample_generator(self._seed, row.epoch, row.sample, row.copy)
        left = None if self._end is None else self._end - row.step
        # A function of the step alone, which resumed runs and all processes agree on.
        augmentations = in_force(self._augmentations, left)
        return apply_augmentations(augmentations, sample, rng, self.dataset)

    def _resizer(self, row: BatchRow) -> schema.Resizer:
        if len(self._resizers) == 1:
            return self._resizers[0]
        # A function of the step alone, which resumed runs and all processes agree on.
        drawn = int(_philox(self._seed, _INPUT_SIZE, 0, row.step).random_raw())
        return self._resizers[drawn % len(self._resizers)]

    def _resize_generator(self, row: BatchRow) -> Generator:
        return resize_generator(self._seed, row.epoch, row.sample, row.copy)


def open_train_loader(
    experiment: schema.Experiment,
    *,
    workers: int,
    process_index: int = 0,
    process_count: int = 1,
    prepare: Callable[[], object] | None = None,
    tiles: ImageTiles | None = None,
    factors: NDArray[np.int64] | None = None,
) -> TrainLoader:
    """Opens the records of training.

    Args:
        workers: threads of each process that makes batches, of this one without `data.processes`.
        prepare: called in each of `data.processes` at its start.
        tiles: as for `open_dataset`; likewise `factors`.

    Raises:
        UserError: see `open_dataset` and `TrainLoader`.
    """
    settings, data = experiment.train, experiment.data
    dataset, beside = open_dataset(data, data.train, experiment.model, tiles, factors), None
    if data.processes:
        again = partial(
            open_train_loader,
            replace(experiment, data=replace(data, processes=0, prefetch=1)),
            workers=workers,
            process_index=process_index,
            process_count=process_count,
            tiles=dataset.tiles,
            factors=dataset.factors,
        )
        beside = InputProcesses(data.processes, again, imports_of(experiment), prepare)
    return TrainLoader(
        dataset,
        augmentations=settings.augmentations,
        batch_size=settings.batch_size,
        seed=data.seed,
        shuffle=data.train.shuffle,
        repeat_first_batch=data.repeat_first_batch,
        train_steps=settings.steps,
        workers=workers,
        processes=beside,
        prefetch=data.batches_ahead,
        pixels=data.pixels,
        reduced_decoding=data.reduced_decoding,
        resizers=[variant.model.resizer for variant in experiment.at_input_sizes],
        process_index=process_index,
        process_count=process_count,
    )


class EvalLoader(BatchMaker):
    """The samples of every record, or of the first `max_examples`, in order; then padding rows.

    Raises:
        UserError: the batch cannot be divided among the processes.
    """

    def __init__(
        self, dataset: Dataset, *, max_examples: int = 0, **options: Unpack[BatchOptions]
    ) -> None:
        super().__init__(dataset, **options)
        images = len(dataset.source)
        self.records = range(min(max_examples or images, images))
        self._samples = dataset.samples_of(len(self.records))

    def __len__(self) -> int:
        return -(-self._samples // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yields all batches. Every call starts again."""
        return self.make(map(Job, range(len(self))))

    def _rows(self, step: int) -> Sequence[BatchRow]:
        first = step * self._batch_size
        samples = range(first + self._local.start, first + self._local.stop)
        return [BatchRow(sample if sample < self._samples else -1) for sample in samples]


def _refuse_unknown_labels(augmentations: Sequence[schema.Augmentation], dataset: Dataset) -> None:
    """Checks labels, which the schema's rules cannot do without a label map."""
    for path, problem in labels_without_slots(augmentations, dataset.slots):
        raise UserError(problem, where=path, fix=f"give ids of {dataset.label_map.where}")


# How often a thread that waits for a disk looks whether it is still wanted.
_LOOK_SECONDS = 3.0


class _End:
    """End of the batches, with the error that stopped the thread, if any."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class DevicePrefetcher:
    """Iterates over batches on the device, transferred by a thread.

    `wait_seconds` is the time that the consumer waited for the newest batch, near 0 if the source
    is fast enough.

    Args:
        batches: host batches; closed together with this, if possible.
        put: transfers a batch; called in the thread.
        depth: batches on the device ahead of their use.
        stopped: called repeatedly while no batch is ready; True ends the iteration.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        put: Callable[[Batch], Batch],
        depth: int = 2,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.wait_seconds = 0.0
        self.starved = False
        """Whether `stopped` has ended the iteration."""
        self._stopped = stopped
        self._batches, self._put = batches, put
        self._closing = threading.Event()
        self._room = threading.Semaphore(depth)
        self._ready: queue.SimpleQueue[Batch | _End] = queue.SimpleQueue()
        self._end: _End | None = None
        self._thread = threading.Thread(target=self._run, name="stillbox-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> "DevicePrefetcher":
        return self

    def __next__(self) -> Batch:
        """Returns the next batch on the device.

        Raises:
            StopIteration: after the last batch, or after `close`.
            Exception: whatever the iterator or `put` raised.
        """
        if self._end is not None:
            raise StopIteration
        asked = time.perf_counter()
        item = self._next_ready()
        self.wait_seconds = time.perf_counter() - asked
        if not isinstance(item, _End):
            self._room.release()
            return item
        self._end = item
        self._thread.join()
        if item.error is not None:
            raise item.error
        raise StopIteration

    def _next_ready(self) -> Batch | _End:
        while True:
            try:
                return self._ready.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self._stopped():
                    self.starved = True
                    self._end = _End()
                    raise StopIteration from None

    def close(self) -> None:
        """Ends the thread and closes the iterator; may be called repeatedly."""
        self._closing.set()
        self._end = self._end or _End()
        self._room.release()  # the thread may be waiting for it
        # A thread that hangs in the source cannot be ended.
        self._thread.join(_LOOK_SECONDS if self._stopped() else None)

    def __enter__(self) -> "DevicePrefetcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        end = _End()
        try:
            for batch in self._batches:
                self._room.acquire()
                if self._closing.is_set():
                    break
                with TraceAnnotation("put a batch on the device"):
                    self._ready.put(self._put(batch))
        except BaseException as error:
            end = _End(error)
        finally:
            # A generator must be closed by the thread that runs it.
            close = getattr(self._batches, "close", None)
            if close is not None:
                close()
            self._ready.put(end)
