"""Decoded images in memory, up to a measured limit."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from stillbox.inputs.sample import Sample
from stillbox.machine_memory import available_memory
from stillbox.printing import count_text, size_text

_MIB = 2**20
# Memory that the program, its compiled steps and its batches need to grow.
_RESERVED_SHARE = 0.2
_MIN_RESERVED = 2048 * _MIB
_MEASURE_EVERY = 64 * _MIB
_RECENT_SHARE = 1 / 16
MOST_RECENT = 512 * _MIB
"""Bytes of the images that tiles are cut out of, at most."""
_AT_ONCE = 32


class SampleCache:
    """Samples by record, up to a `limit` of bytes, by default a measured one. Nothing is evicted.

    Every epoch visits every record once, in another order: evicting the oldest would only lower the
    share of hits. A fifth of the memory that is free at the start, and at least 2 GiB, is reserved.
    Free memory is measured again while the cache grows, since other processes grow too.
    """

    def __init__(self, limit: int | None = None) -> None:
        free = available_memory()
        self._reserved = max(int(_RESERVED_SHARE * free), _MIN_RESERVED)
        self._measures = limit is None
        self.limit = max(free - self._reserved, 0) if limit is None else limit
        self.nbytes = 0
        self.full = False
        self._samples: dict[int, Sample] = {}
        self._measured_at = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._samples)

    def get(self, record: int) -> Sample | None:
        """Returns the sample of a record, if cached."""
        return self._samples.get(record)

    def add(self, record: int, sample: Sample) -> None:
        """Keeps a sample if there is room for it."""
        with self._lock:
            if self.full or record in self._samples:
                return
            if self.nbytes + sample.nbytes > self.limit or self._memory_is_short():
                self.full = True
                return
            self._samples[record] = sample
            self.nbytes += sample.nbytes

    def promise(self) -> str:
        """Returns a sentence about the limit."""
        return f"decoded images are kept in memory: {size_text(self.limit)} at most"

    def describe(self) -> str:
        """Returns a sentence about the content."""
        text = (
            f"{count_text(len(self), 'decoded image')} in memory, {size_text(self.nbytes)} of at "
            f"most {size_text(self.limit)}"
        )
        return f"{text}; full, the others are decoded again every epoch" if self.full else text

    def _memory_is_short(self) -> bool:
        """Returns whether less than the reserve is free; measured rarely."""
        if not self._measures or self.nbytes - self._measured_at < _MEASURE_EVERY:
            return False
        self._measured_at = self.nbytes
        return available_memory() < self._reserved


class RecentImages:
    """The images that were used last, up to a `limit` of bytes, by default a measured one.

    Tiles of one image that follow each other decode it once; so do all tiles of a small set.
    """

    def __init__(self, limit: int | None = None) -> None:
        measured = min(int(_RECENT_SHARE * available_memory()), MOST_RECENT)
        self._limit = measured if limit is None else limit
        self._samples: OrderedDict[int, Sample] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()
        # Threads that need one image wait for its decoder in place of decoding it too.
        self._decoding = tuple(threading.Lock() for _ in range(_AT_ONCE))

    def get(self, record: int, read: Callable[[int], Sample | None]) -> Sample | None:
        """Returns the sample of a record, which `read` decodes if it is not kept."""
        with self._decoding[record % _AT_ONCE]:
            with self._lock:
                if record in self._samples:
                    self._samples.move_to_end(record)
                    return self._samples[record]
            sample = read(record)
            if sample is not None:
                self._keep(record, sample)
            return sample

    def _keep(self, record: int, sample: Sample) -> None:
        with self._lock:
            self._samples[record] = sample
            self._nbytes += sample.nbytes
            while self._nbytes > self._limit:
                _, oldest = self._samples.popitem(last=False)
                self._nbytes -= oldest.nbytes
