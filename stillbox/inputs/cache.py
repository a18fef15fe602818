"""Decoded images in memory, as far as memory allows."""

import threading

from stillbox.inputs.memory import available_memory
from stillbox.inputs.sample import Sample

_MIB = 2**20
# What the program itself, its compiled steps and its batches need to grow.
_SHARE_LEFT_ALONE = 0.2
_LEAST_LEFT_ALONE = 2048 * _MIB
_LOOK_EVERY = 64 * _MIB


class SampleCache:
    """Samples by record, until a limit of bytes is reached. What is in stays in.

    Every epoch visits every record once, in another order: to throw out the oldest in favour of
    the newest would only lower the share of hits.

    The limit is measured, not guessed from the data: a fifth of the memory that is free at the
    start, and 2 GiB at least, is left alone. While the cache grows it looks again, so that the
    same room stays free where several caches, or several processes, grow together.

    Args:
        limit: bytes that the samples may take, whatever is free; None: what is measured.
    """

    def __init__(self, limit: int | None = None) -> None:
        free = available_memory()
        self._left_alone = max(int(_SHARE_LEFT_ALONE * free), _LEAST_LEFT_ALONE)
        self._measures = limit is None
        self.limit = max(free - self._left_alone, 0) if limit is None else limit
        self.nbytes = 0
        self.full = False
        self._samples: dict[int, Sample] = {}
        self._looked_at = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._samples)

    def get(self, record: int) -> Sample | None:
        """Returns the sample of a record if it is here."""
        return self._samples.get(record)

    def add(self, record: int, sample: Sample) -> None:
        """Keeps a sample if there is room for it."""
        with self._lock:
            if self.full or record in self._samples:
                return
            if self.nbytes + sample.nbytes > self.limit or self._room_is_gone():
                self.full = True
                return
            self._samples[record] = sample
            self.nbytes += sample.nbytes

    def promise(self) -> str:
        """Returns a sentence about what the cache may take."""
        return f"decoded images are kept in memory: {self.limit / _MIB:,.0f} MiB at most"

    def describe(self) -> str:
        """Returns a sentence about what the cache holds."""
        text = (
            f"{len(self):,} decoded images in memory, {self.nbytes / _MIB:,.0f} MiB "
            f"of at most {self.limit / _MIB:,.0f}"
        )
        return f"{text}; full, the others are decoded again every epoch" if self.full else text

    def _room_is_gone(self) -> bool:
        """Whether others have taken what was free at the start; seldom looked at."""
        if not self._measures or self.nbytes - self._looked_at < _LOOK_EVERY:
            return False
        self._looked_at = self.nbytes
        return available_memory() < self._left_alone
