"""The most memory that a run has taken."""

import resource
import sys
from dataclasses import dataclass

import jax

from stillbox.printing import size_text


@dataclass(frozen=True)
class PeakMemory:
    """The highest number of bytes in use."""

    nbytes: int
    """On the device that has taken most, or of the process."""
    device: str
    """Name of that device; empty where devices keep no count and the process was measured."""

    def describe(self) -> str:
        """Returns a sentence with the size and what it was measured on."""
        size = size_text(self.nbytes)
        if self.device:
            return f"peak memory on {self.device}: {size}"
        return f"peak memory of the process: {size} resident (its devices keep no count)"


def peak_memory() -> PeakMemory:
    """Returns the peak since the process began, of its devices or else of the process."""
    peaks = [
        PeakMemory(int(stats["peak_bytes_in_use"]), str(device))
        for device in jax.local_devices()
        if "peak_bytes_in_use" in (stats := device.memory_stats() or {})
    ]
    if peaks:
        return max(peaks, key=lambda peak: peak.nbytes)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts KiB, macOS bytes.
    return PeakMemory(resident * (1 if sys.platform == "darwin" else 1024), "")
