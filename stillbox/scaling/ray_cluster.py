"""The connection to Ray: to the cluster of `RAY_ADDRESS`, or to one that is started here."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from stillbox.scaling.extras import need


@contextmanager
def connected() -> Iterator[None]:
    """Connects to Ray, unless that has been done, and disconnects afterwards.

    `RAY_ADDRESS` names the cluster; without it, Ray starts one on this machine. Ray's own
    statistics of use are off unless `RAY_USAGE_STATS_ENABLED` turns them on.

    Raises:
        UserError: Ray is not installed.
    """
    # All before the import, which reads them. The logs keep what is not printed.
    for name, value in (
        ("RAY_USAGE_STATS_ENABLED", "0"),
        ("RAY_BACKEND_LOG_LEVEL", "fatal"),
        ("RAY_DATA_LOG_LEVEL", "ERROR"),
    ):
        os.environ.setdefault(name, value)
    need("ray", "ray")
    import ray

    if ray.is_initialized():
        yield
        return
    with warnings.catch_warnings():
        # Ray starts its programs by a fork; each becomes another program before it touches JAX.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
