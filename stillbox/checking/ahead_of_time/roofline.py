"""How fast a program could be at best, from published figures of the chip. Nothing is measured.

The roofline model of Williams, Waterman and Patterson, 2009, with a third roof for the network.
"""

from dataclasses import asdict, dataclass
from typing import Any

from stillbox.checking.ahead_of_time.chips import Figures


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds that each part would take if it ran at its published peak."""

    products: float
    """Arithmetic, at the peak of bfloat16 products."""
    memory: float
    """Traffic between chip and memory."""
    network: float
    """Sums over all devices."""

    @property
    def seconds(self) -> float:
        """The least that a step can take: its parts at best overlap wholly."""
        return max(self.products, self.memory, self.network)

    @property
    def bound(self) -> str:
        """The part that decides it."""
        parts = asdict(self)
        return max(parts, key=parts.__getitem__)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {**asdict(self), "seconds": self.seconds, "bound": self.bound}


def estimate(
    chip: Figures, *, flops: float, traffic: float, collective: float, devices: int
) -> Roofline:
    """Returns the roofline of one step.

    Args:
        chip: published figures.
        flops: operations of one device.
        traffic: bytes between one device and its memory.
        collective: bytes that go into sums over all devices, on one of them.
        devices: how many devices share the step.
    """
    share = chip.devices
    # Each device sends and receives all but its own part twice: once to sum, once to spread.
    sent = 2 * collective * (devices - 1) / devices
    return Roofline(
        products=flops / (chip.flops / share),
        memory=traffic / (chip.hbm_bandwidth / share),
        network=sent / (chip.link_bandwidth / share),
    )
