"""How a dictionary spreads a model over devices (TPU detection fact sheet 1.1 and 5)."""

import math

from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import Devices

_CORES, _CUT = "train.num_cores_per_replica", "train.input_partition_dims"


def read_devices(reading: Reading) -> Devices:
    """Reads spatial partitioning. What a replica is follows from the devices that there are."""
    path = "devices.spatial_partitions"
    cut = reading.take(_CUT, path) or (1, 1, 1, 1)
    if len(cut) != 4 or (*cut[:1], *cut[2:]) != (1, 1, 1) or cut[1] < 1:
        reading.refuse(
            _CUT, "an image is cut along its height alone", f"{_CUT}=[1,{math.prod(cut)},1,1]"
        )
    cores = reading.take(_CORES, path) or cut[1]
    if cores != cut[1]:
        reading.refuse(
            _CORES,
            f"{_CUT} cuts an image into {cut[1]}",
            f"{_CORES}={cores},{_CUT}=[1,{cores},1,1]",
        )
    return Devices(spatial_partitions=cut[1])
