"""The mesh: a batch is split over its data axis, an image over its space axis."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stillbox.errors import UserError
from stillbox.experiment import schema

Tree = TypeVar("Tree")

DATA_AXIS = "data"
SPACE_AXIS = "space"

# `[B, H, W, C]`: whatever else a batch holds has fewer axes.
_IMAGE_AXES = 4


def build_mesh(
    batch_size: int,
    settings: schema.Devices,
    devices: Sequence[jax.Device] | None = None,
    *,
    where: str = "train.batch_size",
) -> Mesh:
    """Returns a mesh `[data, space]` of devices.

    The devices of a process stand together, so that with P processes each holds the rows
    `p * B / P ...` of a batch of B, which is what the loaders make.

    Args:
        batch_size: B, over all devices.
        settings: how many devices share an image.
        devices: all that JAX finds, if not given; may be those of a topology that is not there.
        where: the field that B comes from, for messages.

    Raises:
        UserError: images or batch cannot be split evenly.
    """
    found = sorted(
        jax.devices() if devices is None else devices,
        key=lambda device: (device.process_index, device.id),
    )
    parts = settings.spatial_partitions
    _check_partitions(parts, found)
    rows = len(found) // parts
    if batch_size % rows:
        lower = max(batch_size // rows, 1) * rows
        each = f" of which {parts} share an image" if parts > 1 else ""
        raise UserError(
            f"a batch of {batch_size} cannot be split evenly over {len(found)} devices{each}",
            where=where,
            fix=f"use {lower} or {lower + rows}",
        )
    return Mesh(np.asarray(found).reshape(rows, parts), (DATA_AXIS, SPACE_AXIS))


def _check_partitions(parts: int, devices: Sequence[jax.Device]) -> None:
    """Refuses to share an image among devices that are too few, or not of one process."""
    processes = {device.process_index for device in devices}
    each = len(devices) // len(processes)
    if each % parts == 0:
        return
    there = f"{each} devices" + (" in a process" if len(processes) > 1 else "")
    fitting = ", ".join(str(number) for number in range(1, each + 1) if each % number == 0)
    raise UserError(
        f"{there} cannot be divided into groups of {parts} that share an image",
        where="devices.spatial_partitions",
        fix=f"one of {fitting}",
    )


def everywhere(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of what lies whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_shardings(batch: Tree, mesh: Mesh) -> Tree:
    """Returns the sharding of each array of a batch: its rows over data, images also over space.

    Args:
        batch: a pytree of arrays `[B, ...]`, or of what has their shapes; images have four axes.
        mesh: of `build_mesh`.
    """

    def sharding(array: Any) -> NamedSharding:  # noqa: ANN401
        axes = (DATA_AXIS, SPACE_AXIS) if len(array.shape) == _IMAGE_AXES else (DATA_AXIS,)
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map(sharding, batch)


def spread_shardings(tree: Tree, mesh: Mesh) -> Tree:
    """Returns shardings that cut every array over data, along its first axis that divides evenly.

    An array without such an axis lies everywhere.

    Args:
        tree: a pytree of arrays, or of what has their shapes.
        mesh: of `build_mesh`.
    """
    parts = mesh.shape[DATA_AXIS]

    def sharding(array: Any) -> NamedSharding:  # noqa: ANN401
        for axis, length in enumerate(array.shape):
            if length and length % parts == 0:
                return NamedSharding(mesh, PartitionSpec(*[None] * axis, DATA_AXIS))
        return everywhere(mesh)

    return jax.tree.map(sharding, tree)


def put_batch(batch: Tree, mesh: Mesh) -> Tree:
    """Moves a pytree of host arrays to the devices, split as `batch_shardings` says.

    Args:
        batch: arrays `[B / P, ...]`, the rows that this one of P processes has.
        mesh: of `build_mesh`.
    """
    shardings = batch_shardings(batch, mesh)
    if jax.process_count() == 1:
        return jax.device_put(batch, shardings)

    def put(array: Any, sharding: NamedSharding) -> jax.Array:  # noqa: ANN401
        rows = len(array) * jax.process_count()
        shape = (rows, *array.shape[1:])
        return jax.make_array_from_process_local_data(sharding, np.asarray(array), shape)

    moved: Tree = jax.tree.map(put, batch, shardings)
    return moved


def put_tree(tree: Tree, shardings: Tree) -> Tree:
    """Moves a pytree of arrays, which every process has whole, to where `shardings` says."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)
    moved: Tree = jax.tree.map(_put_array, tree, shardings)
    return moved


def _put_array(array: Any, sharding: NamedSharding) -> jax.Array:  # noqa: ANN401
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return jax.jit(lambda whole: whole, out_shardings=sharding)(array)
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def put_everywhere(tree: Tree, mesh: Mesh) -> Tree:
    """Moves a pytree to all devices, whole."""
    shardings: Tree = jax.tree.map(lambda _: everywhere(mesh), tree)
    return put_tree(tree, shardings)
