"""How one program is distributed over the devices."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from stillbox.experiment.schema.ranges import *


@dataclass(frozen=True, kw_only=True)
class Devices:
    """All devices run one program: the batch is sharded among them, and images may be too.

    `spatial_partitions` and `shard` place arrays and change no result. `replicas` defines what "per
    replica" means in other fields, for any number of devices.
    """

    # Fields of older versions with their defaults, and what takes their place.
    retired: ClassVar[Mapping[str, tuple[object, str]]] = {
        "program_cache": (None, "STILLBOX_CACHE=FOLDER moves the compiled programs"),
        "program_cache_gib": (10.0, "STILLBOX_CACHE_GIB=N limits them to N gibibytes"),
    }

    spatial_partitions: Annotated[int, Range(1, 65_536)] = 1
    """Devices that share an image, which is partitioned along its height, for images whose
    activations do not fit into one device."""
    shard: Literal["nothing", "optimizer"] = "nothing"
    """What is sharded over the devices that share a batch instead of replicated: nothing, or the
    optimiser's accumulators and the moving average of the parameters."""
    replicas: Annotated[int, Range(0, 1_048_576)] = 0
    """Equal parts of a batch that count as replicas where a field says `per_replica`, so that a
    recipe of eight replicas gives the same on one device; 0: as many as devices share a batch."""
    cpu_convolutions: Literal["exact", "fast"] = "fast"
    """Algorithms of 3x3 convolutions on CPUs; other devices have their own. `exact`: sums of
    products alone. `fast`: where it is faster, Winograd's, which adds a rounding error of about
    1e-5 of the largest value in float32 and of 5e-3 in bfloat16, as much as bfloat16 itself."""
