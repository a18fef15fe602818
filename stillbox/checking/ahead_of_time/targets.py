"""The targets that a program can be compiled for, by name: TPU slices, GPUs, local devices.

The description of a GPU is enough to compile programs for it on a machine without one. XLA then
chooses cuDNN's algorithm for a convolution by rule instead of by trying, and the scratch memory
of that algorithm is not known.
"""

import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from stillbox.checking.memory_estimate import Platform
from stillbox.checking.memory_verdict import Machine
from stillbox.devices.chips import Chip, Figures, describe_gpus, parse_gpus, parse_slice
from stillbox.devices.process import silence_libtpu
from stillbox.errors import UserError
from stillbox.extras import install_command
from stillbox.jax_internals import topologies
from stillbox.printing import count_text
from stillbox.references import Parameter
from stillbox.system import installed_memory

_LOCAL = {"cpu": "cpu", "cuda": "gpu", "gpu": "gpu"}


@dataclass(frozen=True)
class Target:
    """Devices that a program is compiled for."""

    name: str
    """`v5e:2x4`, `h200:8`, `cpu` or `cuda`."""
    devices: tuple[jax.Device, ...]
    """All of them; absent ones are for compiling only."""
    usable_bytes: float
    """Memory of each device that is available to a program."""
    chip: Figures | None = None
    """Published figures; None for devices of this machine."""

    @property
    def slot(self) -> str:
        """The word for a device: `GPU`, `chip` or `core`."""
        return self.chip.slot if self.chip else "device"

    @property
    def machine(self) -> Machine | None:
        """The devices as the estimate of memory takes them; None for a CPU, which is this machine.

        The memory of their hosts is unknown.
        """
        platform = self.devices[0].platform
        if platform == "cpu":
            return None
        kind: Platform = "tpu" if platform == "tpu" else "gpu"
        return Machine(self.name, kind, self.usable_bytes, math.inf, len(self.devices))

    def describe(self) -> str:
        """Returns a phrase with the name, number and kind of the devices."""
        kind = self.devices[0].device_kind
        return f"{self.name}, {count_text(len(self.devices), self.slot)} ({kind})"


def find_target(name: str) -> Target:
    """Returns the target of a name.

    Args:
        name: a slice such as `v5e:2x4`, an accelerator type such as `v5litepod-8` or `v3-8`, GPUs
            such as `h200:8`, or `cpu` or `cuda` for the devices of this machine.

    Raises:
        UserError: there is no such target, or its compiler is not installed.
    """
    if name.lower() in _LOCAL:
        return _local_target(name.lower())
    if gpus := parse_gpus(name):
        gpu, number = gpus
        return Target(f"{gpu.name}:{number}", describe_gpus(gpu, number), gpu.usable_bytes, gpu)
    chip, size = parse_slice(name)
    return Target(f"{chip.generation}:{size}", _slice_devices(chip, size), chip.usable_bytes, chip)


def _slice_devices(chip: Chip, sides: str) -> tuple[jax.Device, ...]:
    if not importlib.util.find_spec("libtpu") and not os.environ.get("TPU_LIBRARY_PATH"):
        problem = "the compiler of TPUs, libtpu, is not installed"
        raise UserError(problem, where=Parameter("target"), fix=install_command("tpu"))
    silence_libtpu()
    options: dict[str, Any] = dict(chip.options)
    # Every host has four chips, except for these slices, which are one host each.
    hosts = {"1x1": (1, 1, 1), "2x4": (2, 4, 1)}
    if sides in hosts:
        options["chips_per_host_bounds"] = hosts[sides]
    try:
        topology = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{chip.generation}:{sides}", **options
        )
    except (RuntimeError, ValueError) as error:
        first, *_ = str(error).splitlines()
        raise UserError(
            f"libtpu cannot describe {chip.generation}:{sides}: {first}",
            where=Parameter("target"),
            fix=f"{install_command('tpu')} installs the release that belongs to this jax, "
            f"{jax.__version__}",
        ) from error
    return tuple(topology.devices)


def _local_target(name: str) -> Target:
    platform = _LOCAL[name]
    devices = _devices_here(platform)
    if not devices:
        fix = (
            f"{install_command('cuda')} where there is a GPU; stillbox doctor shows what JAX "
            f"finds. A TPU slice needs none of its devices: {Parameter('target', 'v5e:2x4')}"
        )
        raise UserError(
            f"there is no {name} device in this machine", where=Parameter("target"), fix=fix
        )
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    if limit is None:
        # Devices without a count of their own share the memory of the machine.
        limit = installed_memory() / len(devices)
    return Target(name, tuple(devices), float(limit))


def _devices_here(platform: str) -> Sequence[jax.Device]:
    try:
        return jax.local_devices(backend=platform)
    except RuntimeError:
        return ()
