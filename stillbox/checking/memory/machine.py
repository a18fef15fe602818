"""The memory of the machine that a run is for."""

import os
from dataclasses import dataclass
from pathlib import Path

import jax

from stillbox.checking.memory.estimate import Platform
from stillbox.inputs.memory import total_memory

_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/vfio")


@dataclass(frozen=True)
class Machine:
    """The memory that a run may take."""

    name: str
    platform: Platform
    device_bytes: float
    """Of each device; on a CPU that of the machine."""
    host_bytes: float
    devices: int = 1
    """That share a batch."""
    processes: int = 1
    """That share the preparation of a batch."""


# Above the largest devices and slices of `ahead_of_time`.
LARGEST = Machine("the largest known one", "tpu", 192 * 2**30, 2**45, 1024, 256)


def this_machine() -> Machine:
    """Returns the devices that a run would use; it starts them."""
    device, host = jax.local_devices()[0], float(total_memory())
    limit = (device.memory_stats() or {}).get("bytes_limit")
    platform: Platform = "tpu" if device.platform == "tpu" else "gpu"
    if device.platform == "cpu" or limit is None:
        return _cpu(host)
    name = device.device_kind
    return Machine(name, platform, float(limit), host, jax.device_count(), jax.process_count())


def processor() -> Machine | None:
    """Returns this machine if it has a CPU alone, without starting anything; else None."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms != "cpu" and any(Path(file).exists() for file in _FILES):
        return None
    return _cpu(float(total_memory()))


def _cpu(host: float) -> Machine:
    # Devices of a CPU share its memory, so that their number does not matter.
    return Machine("this machine", "cpu", host, host)
