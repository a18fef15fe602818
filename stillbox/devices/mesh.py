"""The mesh: a batch is split over its data axis, everything else is everywhere."""

from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stillbox.errors import UserError

Tree = TypeVar("Tree")

DATA_AXIS = "data"


def data_mesh(batch_size: int) -> Mesh:
    """Returns a mesh of all devices with the one axis `data`.

    Raises:
        UserError: the batch cannot be split evenly.
    """
    devices = jax.devices()
    if batch_size % len(devices):
        lower = max(batch_size // len(devices), 1) * len(devices)
        raise UserError(
            f"a batch of {batch_size} cannot be split evenly over {len(devices)} devices",
            where="batch_size",
            fix=f"use {lower} or {lower + len(devices)}",
        )
    return Mesh(np.asarray(devices), (DATA_AXIS,))


def put_batch(batch: Tree, mesh: Mesh) -> Tree:
    """Moves a pytree of host arrays to the devices, split along each array's first axis."""
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(DATA_AXIS)))


def put_everywhere(tree: Tree, mesh: Mesh) -> Tree:
    """Moves a pytree to all devices, whole."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
