"""The guard of a run: it checks the metrics of every step without waiting for the newest one."""

from collections import deque
from collections.abc import Callable, Mapping

import jax
import numpy as np

from stillbox.boxes.structures import AnyArray
from stillbox.devices.job import local_rows
from stillbox.training.step import Metrics


class NonFiniteLossError(FloatingPointError):
    """A loss, gradient or parameter is not finite; the message names step and images."""


class MetricsGuard:
    """Fetches metrics one step late and stops on the first that is not finite.

    The device would be idle if the host waited for the newest step. One step later its metrics are
    available without a wait.
    """

    def __init__(self, name_records: Callable[[np.ndarray], list[str]]) -> None:
        self._name_records = name_records
        self._pending: deque[tuple[int, Metrics, AnyArray]] = deque()

    def push(self, step: int, metrics: Metrics, records: AnyArray) -> None:
        """Takes the metrics of the step just dispatched."""
        self._pending.append((step, metrics, records))

    def pop(self, *, leave: int = 1) -> list[tuple[int, dict[str, float]]]:
        """Returns step and metrics of all but the `leave` newest steps.

        Raises:
            NonFiniteLossError: naming step, loss parts and images.
        """
        seen = []
        while len(self._pending) > leave:
            step, metrics, records = self._pending.popleft()
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            if not values.pop("finite"):
                raise NonFiniteLossError(self._complaint(step, values, local_rows(records)))
            seen.append((step, values))
        return seen

    def _complaint(self, step: int, values: Mapping[str, float], records: np.ndarray) -> str:
        parts = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
        images = "\n    ".join(self._name_records(records))
        return (
            f"step {step}: the loss, its gradient or the new parameters are not finite\n"
            f"  {parts}\n"
            f"  images of the batch:\n    {images}\n"
            "  fix: look at these images' boxes with `stillbox data check`; if they are sound, "
            "lower the learning rate, lengthen its warm-up, or set train.gradient_clip_norm.\n"
            "  Every checkpoint there is was written before this step and is finite."
        )
