"""How one program is spread over the devices that there are."""

from dataclasses import dataclass
from typing import Literal

from stillbox.experiment.schema.ranges import NonNegativeInt, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Devices:
    """All devices run one program: the batch is divided among them, and images may be cut too.

    `spatial_partitions` and `shard` say where arrays lie and change no result. `replicas` says what
    the words "per replica" mean elsewhere, whatever the number of devices is.
    """

    spatial_partitions: PositiveInt = 1
    """Devices that share an image, which is cut along its height: for images so large that the
    activations of one do not fit into a device."""
    shard: Literal["nothing", "optimizer"] = "nothing"
    """What is spread over the devices that share a batch instead of lying whole on each of them:
    nothing, or the optimiser's accumulators and the moving average of the parameters."""
    replicas: NonNegativeInt = 0
    """Equal parts of a batch that count as replicas where a field says `per_replica`, so that a
    recipe of eight replicas gives the same on one device; 0: as many as devices share a batch."""
