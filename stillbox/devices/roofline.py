"""The time of a step by the roofline model.

The model is of Williams, Waterman and Patterson (2009), with published figures of the chip and a
third roof for the network; nothing is measured.
"""

from dataclasses import asdict, dataclass

from stillbox.devices.chips import Figures


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds that each part takes at its published peak."""

    products: float
    """Arithmetic, at the peak of bfloat16 products."""
    memory: float
    """Traffic between chip and memory."""
    network: float
    """Sums over all devices."""

    @property
    def seconds(self) -> float:
        """The least time of a step, if its parts overlap completely."""
        return max(self.products, self.memory, self.network)

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        parts = asdict(self)
        return max(parts, key=parts.__getitem__)

    def to_dict(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        return {**asdict(self), "seconds": self.seconds, "bound": self.bound}


def estimate(
    chip: Figures, *, flops: float, traffic: float, collective: float, devices: int
) -> Roofline:
    """Returns the roofline of one step.

    Args:
        flops: operations of one device.
        traffic: bytes between one device and its memory.
        collective: bytes of one device that are summed over all devices.
    """
    # Each device sends and receives all but its own part twice: to sum, and to spread the sum.
    sent = 2 * collective * (devices - 1) / devices
    return Roofline(
        products=flops / (chip.flops / chip.devices),
        memory=traffic / (chip.hbm_bandwidth / chip.devices),
        network=sent / (chip.link_bandwidth / chip.devices),
    )
