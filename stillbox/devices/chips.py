"""Published figures of TPUs and GPUs, and descriptions of GPUs to compile for where there is none.

XLA then chooses cuDNN's algorithm for a convolution by rule instead of by trying, and the scratch
memory of that algorithm is not known.
"""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from stillbox import numerals
from stillbox.errors import UserError, nearest
from stillbox.extras import install_command
from stillbox.jax_internals import topologies
from stillbox.references import Parameter

_GIB = 2**30
_TPU = re.compile(r"(?:tpu[ _-]?)?(?P<kind>[a-z0-9]+?(?:-lite)?)(?:[:=-](?P<size>[\dx]+))?$")
# Targets that are the devices of this machine.
_HERE = ("cpu", "cuda", "gpu")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Published figures of an accelerator. Rates are peaks that no program reaches."""

    flops: float
    """bfloat16 operations per second of a whole chip."""
    hbm_bytes: float
    """Memory of a whole chip."""
    hbm_bandwidth: float
    """Bytes per second between memory and chip."""
    link_bandwidth: float
    """Bytes per second that a chip sends to the others over all its links."""
    devices: int = 1
    """JAX devices of a chip: 2 where each core is a device."""
    slot: str
    """The word for a device."""
    source: str
    """Publication of the figures."""


@dataclass(frozen=True, kw_only=True)
class Chip(Figures):
    """One generation of TPU."""

    generation: str
    aliases: tuple[str, ...] = ()
    """Other names of the generation."""
    cores: int
    """Cores of a chip."""
    slot: str = "chip"
    usable_bytes: float
    """Memory of a device that the compiler grants a program, by the messages of libtpu 0.0.40."""
    counted_in_cores: bool
    """Whether the number in an accelerator type such as v3-8 counts cores, not chips."""
    slices: tuple[str, ...]
    """Usual slices of up to 128 chips."""
    options: tuple[tuple[str, Any], ...] = ()
    """Further options of the topology's description."""

    def machines(self, sides: str) -> int:
        """Returns how many machines the slice of these sides has.

        A machine has four chips. One of v5e and v6e may have eight, or a small slice of its own.
        """
        chips = chips_of(sides)
        return 1 if chips <= (4 if self.cores > 1 else 8) else chips // 4


_PAGE = "https://cloud.google.com/tpu/docs/"
_PAPER = "Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural Networks, 2020"
_FLAT = ("2x2", "4x4", "4x8", "8x8", "8x16")
_DEEP = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8")
_LITE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16")

CHIPS = {
    chip.generation: chip
    for chip in (
        Chip(
            generation="v2",
            flops=46e12,
            hbm_bytes=16 * _GIB,
            hbm_bandwidth=700e9,
            link_bandwidth=4 * 496e9 / 8,
            cores=2,
            devices=2,
            slot="core",
            usable_bytes=7.48 * _GIB,
            counted_in_cores=True,
            slices=_FLAT,
            source=_PAPER,
        ),
        Chip(
            generation="v3",
            flops=123e12,
            hbm_bytes=32 * _GIB,
            hbm_bandwidth=900e9,
            link_bandwidth=4 * 656e9 / 8,
            cores=2,
            devices=2,
            slot="core",
            usable_bytes=15.48 * _GIB,
            counted_in_cores=True,
            slices=_FLAT,
            source=f"{_PAGE}v3; links: {_PAPER}",
        ),
        Chip(
            generation="v4",
            flops=275e12,
            hbm_bytes=32 * _GIB,
            hbm_bandwidth=1200e9,
            link_bandwidth=6 * 50e9,
            cores=2,
            usable_bytes=30.75 * _GIB,
            counted_in_cores=True,
            slices=_DEEP,
            source=f"{_PAGE}v4; links: Jouppi et al., TPU v4, 2023",
            # The machines' default: two cores are one device.
            options=(("chip_config_name", "megacore"),),
        ),
        Chip(
            generation="v5e",
            aliases=("v5litepod", "v5lite", "v5-lite"),
            flops=197e12,
            hbm_bytes=16e9,
            hbm_bandwidth=819e9,
            link_bandwidth=1600e9 / 8,
            cores=1,
            usable_bytes=15.75 * _GIB,
            counted_in_cores=False,
            slices=_LITE,
            source=f"{_PAGE}v5e",
        ),
        Chip(
            generation="v5p",
            aliases=("v5",),
            flops=459e12,
            hbm_bytes=95e9,
            hbm_bandwidth=2765e9,
            link_bandwidth=4800e9 / 8,
            cores=2,
            usable_bytes=95.74 * _GIB,
            counted_in_cores=True,
            slices=_DEEP,
            source=f"{_PAGE}v5p",
        ),
        Chip(
            generation="v6e",
            aliases=("v6", "v6lite", "trillium"),
            flops=918e12,
            hbm_bytes=32e9,
            hbm_bandwidth=1638e9,
            link_bandwidth=3200e9 / 8,
            cores=1,
            usable_bytes=31.25 * _GIB,
            counted_in_cores=False,
            slices=_LITE,
            source=f"{_PAGE}v6e",
        ),
    )
}
"""By generation. hbm_bytes is in GB or GiB as it is published."""


SIZES = (1, 2, 4, 8)
"""GPUs of one machine."""

# The part of a GPU's memory that JAX takes by default.
_FRACTION, _FRACTION_VARIABLE = 0.75, "XLA_PYTHON_CLIENT_MEM_FRACTION"
# Without a driver the plugin fails to compare its libraries' versions; compiling does not need it.
_WITHOUT_DRIVER = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"


@dataclass(frozen=True, kw_only=True)
class Gpu(Figures):
    """One model, with the properties that XLA's compiler needs."""

    name: str
    slot: str = "GPU"
    product: str
    """Name of the GPU in the driver."""
    capability: tuple[int, int]
    """The version of CUDA's compute capability."""
    cores: int
    """Streaming multiprocessors."""
    floats_per_core: int = 128
    """float32 units of each of them."""
    shared_per_core: int = 228 * 2**10
    """Bytes of shared memory of each of them."""
    cache_bytes: int
    """Second-level cache."""
    clock_ghz: float
    """The highest clock rate."""

    @property
    def usable_bytes(self) -> float:
        """Memory that JAX takes."""
        return self.hbm_bytes * float(os.environ.get(_FRACTION_VARIABLE, _FRACTION))

    def description(self) -> str:
        """Returns XLA's description of the device, a `GpuTargetConfigProto` as text."""
        major, minor = self.capability
        # From 9.0 on there are instructions of one capability alone.
        extension = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {self.shared_per_core}
  shared_memory_per_block_optin: {self.shared_per_core - 1024}
  threads_per_core_limit: 2048
  core_count: {self.cores}
  fpus_per_core: {self.floats_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {self.hbm_bandwidth:.0f}
  device_memory_size: {self.hbm_bytes:.0f}
  l2_cache_size: {self.cache_bytes}
  clock_rate_ghz: {self.clock_ghz}
  cuda_compute_capability {{ major: {major} minor: {minor} {extension} }}
}}
runtime_version {{ major: 13 }}
dnn_version_info {{ major: 9 minor: 10 }}
platform_name: "CUDA"
device_description_str: "{self.product}"
"""


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="a100",
            product="NVIDIA A100-SXM4-80GB",
            flops=312e12,
            hbm_bytes=85_100_068_864,
            hbm_bandwidth=2_039e9,
            link_bandwidth=300e9,
            capability=(8, 0),
            cores=108,
            floats_per_core=64,
            shared_per_core=164 * 2**10,
            cache_bytes=40 * 2**20,
            clock_ghz=1.41,
            source="NVIDIA A100 data sheet, 80 GB SXM",
        ),
        Gpu(
            name="h100",
            product="NVIDIA H100 80GB HBM3",
            flops=989e12,
            hbm_bytes=84_942_979_072,
            hbm_bandwidth=3_350e9,
            link_bandwidth=450e9,
            capability=(9, 0),
            cores=132,
            cache_bytes=50 * 2**20,
            clock_ghz=1.98,
            source="NVIDIA H100 data sheet, SXM",
        ),
        Gpu(
            name="h200",
            product="NVIDIA H200",
            flops=989e12,
            hbm_bytes=151_397_597_184,
            hbm_bandwidth=4_800e9,
            link_bandwidth=450e9,
            capability=(9, 0),
            cores=132,
            cache_bytes=50 * 2**20,
            clock_ghz=1.98,
            source="NVIDIA H200 data sheet, SXM",
        ),
        Gpu(
            name="b200",
            product="NVIDIA B200",
            flops=2_250e12,
            hbm_bytes=191_514_411_008,
            hbm_bandwidth=7_700e9,
            link_bandwidth=900e9,
            capability=(10, 0),
            cores=148,
            cache_bytes=132_644_864,
            clock_ghz=1.965,
            source="NVIDIA DGX B200 data sheet, an eighth of it",
        ),
    )
}
"""By name. Rates are for dense products."""


def figures_of(device_kind: str) -> Figures | None:
    """Returns the published figures of a device by its name in JAX; None where it is not known."""
    kind = device_kind.lower().removeprefix("tpu").replace(" ", "")
    gpu = next((figures for figures in GPUS.values() if figures.product == device_kind), None)
    return gpu or next(
        (chip for chip in CHIPS.values() if kind in (chip.generation, *chip.aliases)), None
    )


def chips_of(sides: str) -> int:
    """Returns the number of chips of a slice, 16 for 4x4."""
    return math.prod(map(int, sides.split("x")))


_TARGET = Parameter("target")


def parse_slice(name: str, where: Parameter = _TARGET) -> tuple[Chip, str]:
    """Returns the generation of TPU and the sides of the slice of a name.

    Args:
        name: such as `v5e:2x4`, `v5litepod-8` or `v3-8`.
        where: the option of the name, for messages.

    Raises:
        UserError: there is no such slice, or it is not a usual one.
    """
    match = _TPU.match(name.lower().strip())
    known = {alias: chip for chip in CHIPS.values() for alias in (chip.generation, *chip.aliases)}
    if not match or match["kind"] not in known:
        problem = f"{name!r} is no {'target' if where == _TARGET else 'slice of TPUs'}"
        raise UserError(problem, where=where, fix=_names_near(name, where))
    chip = known[match["kind"]]
    size = match["size"] or ""
    number = numerals.count(size)
    if number is not None:
        cores = chip.cores if chip.counted_in_cores else 1
        sizes = {chips_of(sides) * cores: sides for sides in chip.slices}
        size = sizes.get(number, "")
    if size not in chip.slices:
        problem = f"{name!r} is no usual slice of TPU {chip.generation}"
        fix = f"one of {', '.join(f'{chip.generation}:{sides}' for sides in chip.slices)}"
        raise UserError(problem, where=where, fix=fix)
    return chip, size


def _names_near(name: str, where: Parameter) -> str:
    slices = [f"{chip.generation}:{sides}" for chip in CHIPS.values() for sides in chip.slices]
    others = (*GPUS, *_HERE) if where == _TARGET else ()
    hint = nearest(name.lower(), [*slices, *others])
    if hint.startswith("did you mean"):
        return hint
    # The list of all slices would fill the screen.
    tpus = f"TPU {', '.join(CHIPS)} as v5e:2x4, v5litepod-8 or v3-8"
    rest = f"; GPU {', '.join(GPUS)} as h200 or h200:8; cpu or cuda for what is here"
    return tpus + rest if others else tpus


def parse_gpus(name: str) -> tuple[Gpu, int] | None:
    """Returns the model and the number of GPUs of a name such as `h200:8`; None: no known model.

    Raises:
        UserError: no machine has so many.
    """
    model, _, size = name.lower().strip().partition(":")
    gpu = GPUS.get(model)
    if gpu is None:
        return None
    if (size or "1") not in map(str, SIZES):
        raise UserError(
            f"{name!r} is no usual number of GPUs of a machine",
            where=Parameter("target"),
            fix=f"one of {', '.join(f'{model}:{size}' for size in SIZES)}",
        )
    return gpu, int(size or 1)


def describe_gpus(gpu: Gpu, number: int) -> tuple[jax.Device, ...]:
    """Returns the GPUs of one machine, for compiling only.

    Raises:
        UserError: JAX's plugin for CUDA is not installed, or does not know them.
    """
    if not Path("/dev/nvidiactl").exists():
        os.environ.setdefault(_WITHOUT_DRIVER, "1")
    try:
        topology = topologies.get_topology_desc(
            platform="cuda",
            topology_name=gpu.name,
            topology=f"1x1x{number}",
            target_config=gpu.description(),
        )
    except (NotImplementedError, RuntimeError) as error:
        first, *_ = str(error).splitlines()
        raise UserError(
            f"the compiler for CUDA is not here: {first}",
            where=Parameter("target"),
            fix=f"{install_command('cuda')} installs it, also where there is no GPU",
        ) from error
    return tuple(topology.devices)
