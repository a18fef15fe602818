"""The TPU's library on a machine without a TPU.

With the extra `[tpu]` JAX looks for a TPU at every start. Where there is none the library takes a
lock that a second program fails on, writes logs into /tmp and two errors to the terminal, all
because of facts that only a machine with a TPU has.
"""

import os
from pathlib import Path

# What the library would ask a machine with a TPU. No device is made of it, and slices that
# programs are compiled for are described in full.
_FACTS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def quieten_absent_tpu(devices: Path = Path("/dev")) -> None:
    """Keeps the TPU's library quiet where there is no TPU; elsewhere nothing is touched.

    It has to be called before JAX starts its devices. What is set in the environment already
    stays.

    Args:
        devices: where the system shows its devices.
    """
    if any(devices.glob("accel*")) or any(devices.glob("vfio/[0-9]*")):
        return
    for name, value in _FACTS.items():
        os.environ.setdefault(name, value)
