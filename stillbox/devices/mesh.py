"""The device mesh: batches are split over its data axis, images over its space axis."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from stillbox.devices.setup import collection_paused
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.lowering import Platform, lowering
from stillbox.printing import count_text

Tree = TypeVar("Tree")
ArrayOrShape = np.ndarray | jax.Array | jax.ShapeDtypeStruct

DATA_AXIS = "data"
SPACE_AXIS = "space"

# By JAX's names; GPUs have several.
_PLATFORMS: dict[str, Platform] = {
    "cpu": "cpu",
    "gpu": "gpu",
    "cuda": "gpu",
    "rocm": "gpu",
    "tpu": "tpu",
}


def build_mesh(
    batch_size: int,
    settings: schema.Devices,
    devices: Sequence[jax.Device] | None = None,
    *,
    where: str = "train.batch_size",
    parts: int = 1,
) -> Mesh:
    """Returns a mesh `[data, space]` of devices.

    The devices of a process are adjacent: of P processes, process p holds the rows from
    `p * B / P` on of a batch of B, as its loader makes them.

    Args:
        batch_size: B, over all devices.
        settings: number of devices that share an image.
        devices: default: all that JAX finds; devices of a topology need not be present.
        where: the field of B, for messages.
        parts: micro-batches that a batch is divided into, each of which is split over the devices.

    Raises:
        UserError: images or batch cannot be split evenly.
    """
    ordered = sorted(
        jax.devices() if devices is None else devices,
        key=lambda device: (device.process_index, device.id),
    )
    sharing = settings.spatial_partitions
    _check_partitions(sharing, ordered)
    rows = len(ordered) // sharing
    if batch_size % (rows * parts):
        lower = max(batch_size // (rows * parts), 1) * rows * parts
        each = f" of which {sharing} share an image" if sharing > 1 else ""
        pieces = f" in {parts} micro-batches" if parts > 1 else ""
        raise UserError(
            f"a batch of {batch_size} cannot be split evenly{pieces} over "
            f"{count_text(len(ordered), 'device')}{each}",
            where=where,
            fix=f"use {lower} or {lower + rows * parts}",
        )
    return Mesh(np.asarray(ordered).reshape(rows, sharing), (DATA_AXIS, SPACE_AXIS))


@contextmanager
def tracing_for(mesh: Mesh, settings: schema.Devices) -> Iterator[None]:
    """Traces programs inside it for the devices of a mesh, in the forms that are fastest there."""
    platform = _PLATFORMS.get(mesh.devices.flat[0].platform)
    with (
        collection_paused(),
        use_abstract_mesh(mesh.abstract_mesh),
        lowering(cpu_convolutions=settings.cpu_convolutions, platform=platform),
    ):
        yield


def _check_partitions(parts: int, devices: Sequence[jax.Device]) -> None:
    """Refuses numbers of devices to an image that do not divide the devices of a process."""
    processes = {device.process_index for device in devices}
    each = len(devices) // len(processes)
    if each % parts == 0:
        return
    there = count_text(each, "device") + (" in a process" if len(processes) > 1 else "")
    fitting = ", ".join(str(number) for number in range(1, each + 1) if each % number == 0)
    raise UserError(
        f"{there} cannot be divided into groups of {parts} that share an image",
        where="devices.spatial_partitions",
        fix=f"one of {fitting}",
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that is replicated on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_shardings(batch: Tree, mesh: Mesh) -> Tree:
    """Returns the sharding of each array of a batch: rows over data, images also over space.

    Args:
        batch: a pytree of arrays `[B, ...]` or of their shapes; images `[B, H, W, C]` are the only
            ones with four axes.
        mesh: of `build_mesh`.
    """

    def sharding(array: ArrayOrShape) -> NamedSharding:
        axes = (DATA_AXIS, SPACE_AXIS) if len(array.shape) == 4 else (DATA_AXIS,)
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map(sharding, batch)


def spread_shardings(tree: Tree, mesh: Mesh) -> Tree:
    """Returns shardings that split each array over data, along its first axis that divides evenly.

    An array without such an axis is replicated.

    Args:
        tree: a pytree of arrays or of their shapes.
        mesh: of `build_mesh`.
    """
    parts = mesh.shape[DATA_AXIS]

    def sharding(array: ArrayOrShape) -> NamedSharding:
        for axis, length in enumerate(array.shape):
            if length and length % parts == 0:
                return NamedSharding(mesh, PartitionSpec(*[None] * axis, DATA_AXIS))
        return replicated(mesh)

    return jax.tree.map(sharding, tree)


def put_batch(batch: Tree, mesh: Mesh) -> Tree:
    """Moves a pytree of host arrays to the devices, sharded as by `batch_shardings`.

    Args:
        batch: arrays `[B / P, ...]`, the rows of this one of P processes.
        mesh: of `build_mesh`.
    """
    shardings = batch_shardings(batch, mesh)
    if jax.process_count() == 1:
        return jax.device_put(batch, shardings)

    def put(array: np.ndarray | jax.Array, sharding: NamedSharding) -> jax.Array:
        rows = len(array) * jax.process_count()
        shape = (rows, *array.shape[1:])
        return jax.make_array_from_process_local_data(sharding, np.asarray(array), shape)

    moved: Tree = jax.tree.map(put, batch, shardings)
    return moved


def put_tree(tree: Tree, shardings: Tree) -> Tree:
    """Moves a pytree of arrays that are the same in every process to their shardings."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def put(array: np.ndarray | jax.Array, sharding: NamedSharding) -> jax.Array:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return jax.jit(lambda whole: whole, out_shardings=sharding)(array)
        host = np.asarray(array)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    moved: Tree = jax.tree.map(put, tree, shardings)
    return moved


def replicate(tree: Tree, mesh: Mesh) -> Tree:
    """Moves a pytree to all devices, replicated."""
    shardings: Tree = jax.tree.map(lambda _: replicated(mesh), tree)
    return put_tree(tree, shardings)
