"""Forecasts the time of a run's steps before one is measured, by the model of `stillbox check`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from stillbox.devices.chips import Figures, figures_of
from stillbox.devices.process import own_processors
from stillbox.printing import count_text
from stillbox.profiling.costs import estimate

# A core in docs/performance.md: the products of RetinaNet, the traffic of SSD MobileNet v1.
_CORE_FLOPS, _CORE_BANDWIDTH = 225e9, 12.5e9
# Factors for slower cores, and for cores that other programs use too.
_ON_PROCESSORS = 1.0, 5.0
# No program reaches an accelerator's published peaks.
_ON_ACCELERATORS = 1.5, 6.0
_UNITS = {"day": 86400, "hour": 3600, "minute": 60}


class Forecast(NamedTuple):
    """The time of a step, from its operations and its memory traffic."""

    least: float
    """Seconds."""
    most: float
    """Seconds."""
    basis: str
    """What it was computed from."""

    def describe(self, steps: int) -> str:
        """Returns a phrase with the time of so many steps."""
        least, most = _rough(steps * self.least), _rough(steps * self.most)
        return f"about {least} to {most}, by {self.basis}"


def forecast(
    steps: Sequence[jax.stages.Compiled], devices: int, precision: str, rounds: int = 1
) -> Forecast | None:
    """Returns the time of a step on this machine; None where its devices are not known.

    Args:
        steps: compiled for each input size, which are drawn equally often.
        devices: those that share a batch.
        rounds: micro-batches of a batch.
    """
    costs: list[Any] = [step.cost_analysis() or {} for step in steps]
    # The analysis counts one round of a loop.
    flops, traffic = (
        rounds * sum(float(one.get(name, 0)) for one in costs) / len(costs)
        for name in ("flops", "bytes accessed")
    )
    device = jax.local_devices()[0]
    cpu = device.platform == "cpu"
    figures = _processors() if cpu else figures_of(device.device_kind)
    if flops <= 0 or figures is None:
        return None
    # Published rates are those of bfloat16; products of float32 take twice as long.
    work = flops * (1 if cpu or precision == "bfloat16" else 2)
    roof = estimate(figures, flops=work, traffic=traffic, collective=0, devices=devices)
    least, most = _ON_PROCESSORS if cpu else _ON_ACCELERATORS
    number = own_processors() if cpu else devices
    basis = f"{devices * flops / 1e9:,.0f} GFLOP a step on {count_text(number, figures.slot)}"
    return Forecast(least * roof.seconds, most * roof.seconds, basis)


def _processors() -> Figures:
    """Returns the figures of the cores of this process, which its devices share."""
    cores = own_processors()
    return Figures(
        flops=cores * _CORE_FLOPS,
        hbm_bytes=0,
        hbm_bandwidth=cores * _CORE_BANDWIDTH,
        link_bandwidth=cores * _CORE_BANDWIDTH,
        devices=jax.local_device_count(),
        slot="core",
        source="docs/performance.md",
    )


def _rough(seconds: float) -> str:
    """Returns a duration in one unit: `12 minutes`."""
    for unit, size in _UNITS.items():
        if seconds >= 2 * size:
            return count_text(round(seconds / size), unit)
    return count_text(max(round(seconds), 1), "second")
