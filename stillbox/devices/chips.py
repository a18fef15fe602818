"""Published figures of each generation of TPU, and the memory that its compiler grants."""

from dataclasses import dataclass
from typing import Any

_GIB = 2**30


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
            # Both cores as one device, the machines' default.
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
