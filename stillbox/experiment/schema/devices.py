"""How one program is distributed over the devices."""

from dataclasses import dataclass
from typing import Literal

from stillbox.experiment.schema.ranges import *


@dataclass(frozen=True, kw_only=True)
class Devices:
    """All devices run one program: the batch is sharded among them, and images may be too.

    `spatial_partitions` and `shard` place arrays and change no result. `replicas` defines what "per
    replica" means in other fields, for any number of devices.
    """

    spatial_partitions: PositiveInt = 1
    """Devices that share an image, which is partitioned along its height, for images whose
    activations do not fit into one device."""
    shard: Literal["nothing", "optimizer"] = "nothing"
    """What is sharded over the devices that share a batch instead of replicated: nothing, or the
    optimiser's accumulators and the moving average of the parameters."""
    replicas: NonNegativeInt = 0
    """Equal parts of a batch that count as replicas where a field says `per_replica`, so that a
    recipe of eight replicas gives the same on one device; 0: as many as devices share a batch."""
