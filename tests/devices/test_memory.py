"""Peak memory of devices or of the process."""

import re
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from stillbox.devices.memory import peak_memory

STATUS = Path("/proc/self/status")


class Device(SimpleNamespace):
    def memory_stats(self):
        return self.stats

    def __str__(self):
        return self.name


def test_the_device_with_the_highest_peak_is_named(monkeypatch):
    gib = 2**30
    devices = [
        Device(name="cuda:0", stats={"bytes_in_use": 9 * gib, "peak_bytes_in_use": 10 * gib}),
        Device(name="cuda:1", stats={"bytes_in_use": 1, "peak_bytes_in_use": 23 * gib // 2}),
    ]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert peak_memory().device == "cuda:1"
    assert peak_memory().describe() == "peak memory on cuda:1: 11.50 GiB"


@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells it in a second place")
def test_without_counts_of_devices_the_process_is_measured():
    peak = peak_memory()  # a processor keeps none
    (line,) = (text for text in STATUS.read_text().splitlines() if text.startswith("VmHWM"))
    resident = int(line.split()[1]) * 1024
    assert peak.device == ""
    assert peak.nbytes == pytest.approx(resident, rel=0.02)
    assert re.fullmatch(r"peak memory of the process: [\d.,]+ [GM]iB resident .*", peak.describe())
