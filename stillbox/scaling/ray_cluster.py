"""The Ray cluster of `RAY_ADDRESS`, or one of this machine."""

import logging
import os
import re
import socket
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stillbox.errors import UserError
from stillbox.experiment.imports import import_parts
from stillbox.extras import import_extra

# Ray itself asks an address that does not answer for many minutes.
_ANSWER_SECONDS = 10.0
_WHERE = "RAY_ADDRESS"


@contextmanager
def connected(*, output_of_workers: bool = False) -> Iterator[None]:
    """Connects to the cluster of `RAY_ADDRESS`, or starts one here, unless connected already.

    Ray's usage statistics are off unless `RAY_USAGE_STATS_ENABLED` turns them on.

    Args:
        output_of_workers: print what the workers print, and start a dashboard.

    Raises:
        UserError: Ray is not installed, or the cluster does not answer or refuses.
    """
    # Ray reads these when it is imported. Its log files keep what is not printed.
    quiet = {"USAGE_STATS_ENABLED": "0", "BACKEND_LOG_LEVEL": "fatal", "DATA_LOG_LEVEL": "ERROR"}
    for name, value in quiet.items():
        os.environ.setdefault(f"RAY_{name}", value)
    import_extra("ray", "ray")
    import ray

    if ray.is_initialized():
        yield
        return
    _refuse_silence(os.environ.get(_WHERE, ""))
    with warnings.catch_warnings():
        # Ray's forks execute another program before they use JAX.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
        try:
            ray.init(
                # Ray Train asks the dashboard for the states of its actors.
                include_dashboard=output_of_workers,
                log_to_driver=output_of_workers,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"the Ray cluster cannot be used: {str(error).splitlines()[0]}",
                where=_WHERE,
                fix="`ray status` shows a cluster; without RAY_ADDRESS one is started here",
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


def running_machines() -> list[dict[str, float]]:
    """Returns the resources of each machine of the cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def may_grow() -> bool:
    """Tells whether Ray starts the machines that work waits for."""
    from ray._private.state import state

    return bool(state.get_max_resources_from_cluster_config())


def enter_driver(folder: Path, imports: Iterable[str]) -> None:
    """Gives a worker the folder and the parts of the process that it works for.

    Args:
        folder: where the command runs, for relative paths. Ray starts a worker in one of its own.
        imports: arguments of `--import`.
    """
    if folder.is_dir():
        os.chdir(folder)
    import_parts(imports)


def _refuse_silence(address: str) -> None:
    """Refuses an address of a cluster that does not answer; others are Ray's to judge."""
    endpoint = re.fullmatch(r"(?:ray://)?\[?([^/\]]+?)\]?:([0-9]{1,9})", address)
    if endpoint is None:
        return
    try:
        socket.create_connection((endpoint[1], int(endpoint[2])), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address}: {error}",
            where=_WHERE,
            fix="give the address that `ray start --head` printed, and open its port",
        ) from error
