"""The most memory that a run has taken."""

import resource
import sys
from dataclasses import dataclass

import jax

_GIB = 2**30


@dataclass(frozen=True)
class PeakMemory:
    """The highest count of bytes, and whose it is."""

    nbytes: int
    """On the device that has taken most, or in main memory."""
    device: str
    """Name of that device; empty where devices keep no count and the whole process was measured."""

    def describe(self) -> str:
        """Returns a sentence that says which of the two it is."""
        size = f"{self.nbytes / _GIB:,.2f} GiB"
        if self.device:
            return f"peak memory on {self.device}: {size}"
        return f"peak memory of the process: {size} resident (its devices keep no count)"


def peak_memory() -> PeakMemory:
    """Returns the peak since the process began, of the device or else of the process."""
    counts = [
        PeakMemory(int(stats["peak_bytes_in_use"]), str(device))
        for device in jax.local_devices()
        if "peak_bytes_in_use" in (stats := device.memory_stats() or {})
    ]
    if counts:
        return max(counts, key=lambda peak: peak.nbytes)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts KiB, macOS bytes.
    return PeakMemory(resident * (1 if sys.platform == "darwin" else 1024), "")
