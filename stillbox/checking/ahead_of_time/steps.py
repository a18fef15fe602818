"""The compiler's verdict on one program."""

from dataclasses import dataclass, field
from typing import Any, Literal

from stillbox.checking.ahead_of_time.memory import Memory
from stillbox.profiling.costs import Roofline

StepName = Literal["train", "evaluate", "predict"]
STEPS: tuple[StepName, ...] = ("train", "evaluate", "predict")


@dataclass(frozen=True, kw_only=True)
class StepCheck:
    """The compiler's verdict on one program."""

    step: StepName
    images: int
    """Images of a step, over all devices."""
    devices: int
    refused: str = ""
    """Why it is not compiled or does not fit; empty if it fits."""
    fix: str = ""
    """The fields that mend it."""
    needed: int = 0
    """Bytes that a device would need, if that is the reason and known."""
    seconds: float = 0.0
    """Wall clock of tracing and compiling."""
    memory: Memory | None = None
    flops: float = 0.0
    """Operations of a step on each device; a loop of unknown length counts as one round."""
    traffic: int = 0
    """Bytes between each device and its memory, roughly."""
    collectives: dict[str, int] = field(default_factory=dict)
    """Bytes that each kind of collective reads on a device."""
    roofline: Roofline | None = None
    """Of a training step on a chip with published figures."""

    @property
    def fits(self) -> bool:
        """Whether it is compiled and fits."""
        return not self.refused

    @property
    def flops_per_image(self) -> float:
        """Operations for one image."""
        return self.flops * self.devices / self.images

    @property
    def images_per_second(self) -> float | None:
        """The most that the published figures allow."""
        return self.images / self.roofline.seconds if self.roofline else None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {
            "step": self.step,
            "fits": self.fits,
            "refused": self.refused,
            "fix": self.fix,
            "images": self.images,
            "devices": self.devices,
            "compile_seconds": round(self.seconds, 1),
            "bytes_needed_per_device": self.needed,
            "memory_per_device": self.memory.to_dict() if self.memory else None,
            "flops_per_image": self.flops_per_image,
            "flops_per_step": self.flops * self.devices,
            "memory_traffic_per_device": self.traffic,
            "collective_bytes_per_device": self.collectives,
            "roofline_estimate": self.roofline.to_dict() if self.roofline else None,
            "images_per_second_at_most": self.images_per_second,
        }
