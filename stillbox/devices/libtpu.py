"""The TPU library, libtpu, on a machine without a TPU.

With the extra `[tpu]` JAX looks for a TPU at every start. Where there is none libtpu takes a lock
that a second program fails on, writes logs into /tmp and prints two errors, because it lacks facts
that only a machine with a TPU provides.
"""

import os
from pathlib import Path

# No device is made of these; slices that programs are compiled for are described in full.
_FACTS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def silence_libtpu(devices: Path = Path("/dev")) -> None:
    """Sets the variables that libtpu lacks on a machine without a TPU, unless they are set.

    Call it before JAX starts its devices.

    Args:
        devices: folder of the system's devices.
    """
    if any(devices.glob("accel*")) or any(devices.glob("vfio/[0-9]*")):
        return
    for name, value in _FACTS.items():
        os.environ.setdefault(name, value)
