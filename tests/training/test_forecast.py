"""The time of a step before the first one, from its costs."""

from types import SimpleNamespace

import jax
import pytest

from stillbox.devices.chips import figures_of
from stillbox.training import forecast as module
from stillbox.training.forecast import Forecast, forecast


class Compiled:
    """A program of a trillion operations and 100 GB of traffic, or of unknown costs."""

    def __init__(self, costs):
        self.costs = costs

    def cost_analysis(self):
        return self.costs


STEP = Compiled({"flops": 1e12, "bytes accessed": 1e11})


def on(monkeypatch, platform, kind, cores=4):
    device = SimpleNamespace(platform=platform, device_kind=kind)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    monkeypatch.setattr(module, "own_processors", lambda: cores)


def test_a_cpu_is_as_fast_as_its_cores(monkeypatch):
    on(monkeypatch, "cpu", "cpu")
    # 100 GB at 12.5 GB/s a core take longer than the operations, and up to five times as long.
    assert forecast([STEP], 1, "float32") == Forecast(2, 10, "1,000 GFLOP a step on 4 cores")


def test_an_accelerator_stays_below_its_published_peaks(monkeypatch):
    on(monkeypatch, "tpu", "TPU v5 lite")
    step = Compiled({"flops": 197e12, "bytes accessed": 1e9})
    # 197 TFLOP/s in bfloat16, half of them in float32.
    assert forecast([step], 8, "bfloat16")[:2] == (1.5, 6)
    assert forecast([step], 8, "float32") == Forecast(3, 12, "1,576,000 GFLOP a step on 8 chips")


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("TPU v4", 275e12),
        ("TPU v5p", 459e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
    ],
)
def test_devices_are_known_by_their_names_in_jax(kind, flops):
    assert figures_of(kind).flops == flops


def test_nothing_is_said_of_unknown_devices_and_costs(monkeypatch):
    on(monkeypatch, "gpu", "NVIDIA GeForce RTX 3060")
    assert forecast([STEP], 1, "float32") is None
    on(monkeypatch, "cpu", "cpu")
    assert forecast([Compiled(None)], 1, "float32") is None


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (1, "about 1 second to 4 seconds, by X"),
        (850, "about 14 minutes to 57 minutes, by X"),
        (100_000, "about 28 hours to 5 days, by X"),
    ],
)
def test_a_run_takes_a_rounded_time(steps, said):
    assert Forecast(1, 4, "X").describe(steps) == said
