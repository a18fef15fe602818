"""Decoded images in memory, as far as memory allows."""

import logging
import os
import threading
from pathlib import Path

from stillbox.inputs.sample import Sample

_LOG = logging.getLogger(__name__)
# Training and evaluation data may both be cached, and the program itself needs room to grow.
_SHARE = 0.4


class SampleCache:
    """Samples by record, until a limit of bytes is reached. What is in stays in.

    Every epoch visits every record once, in another order: to throw out the oldest in favour of
    the newest would only lower the share of hits.

    Args:
        limit: bytes that the samples may take; None: a share of the memory that is free now.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = int(_SHARE * available_memory()) if limit is None else limit
        self.nbytes = 0
        self._samples: dict[int, Sample] = {}
        self._full = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._samples)

    def get(self, record: int) -> Sample | None:
        """Returns the sample of a record if it is here."""
        return self._samples.get(record)

    def add(self, record: int, sample: Sample) -> None:
        """Keeps a sample if there is room for it."""
        with self._lock:
            if self._full or record in self._samples:
                return
            if self.nbytes + sample.nbytes > self.limit:
                self._full = True
                _LOG.info("%s; the rest is decoded again every epoch", self.describe())
                return
            self._samples[record] = sample
            self.nbytes += sample.nbytes

    def describe(self) -> str:
        """Returns a phrase with the number of images and their size."""
        return (
            f"{len(self):,} decoded images in memory, {self.nbytes / 2**20:,.0f} MiB "
            f"of at most {self.limit / 2**20:,.0f}"
        )


def available_memory() -> int:
    """Returns the bytes that this process may still take: of the machine, or of its container."""
    return min(_free_on_machine(), _free_in_container())


def _free_on_machine() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # Elsewhere (macOS) only the whole is known: half of it is a careful guess.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _free_in_container(group: Path = Path("/sys/fs/cgroup")) -> int:
    try:
        limit = int((group / "memory.max").read_text())
        return max(limit - int((group / "memory.current").read_text()), 0)
    except (OSError, ValueError):  # no control group, or its limit is "max"
        return 2**63 - 1
