"""Sharding of a program over devices, decided while it is traced.

A program for several devices is traced under `jax.sharding.use_abstract_mesh`. The first axis of
the mesh divides a batch, the others divide images. Without a mesh there is one device, and the
functions here change nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import jax
from jax.sharding import PartitionSpec

Tree = TypeVar("Tree")

Sharding = Literal["batch", "replicated"]
"""`batch`: each device has the rows `[B / D, ...]` of its images. `replicated`: it has all."""


def is_spatially_partitioned() -> bool:
    """Returns whether several devices share an image."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > mesh.axis_sizes[0]


def batch_shard_map(
    function: Callable[..., Any],
    in_shardings: Sequence[Sharding],
    out_shardings: Sharding | Sequence[Sharding],
) -> Callable[..., Any]:
    """Returns `function`, run by every device on its own images without communication.

    XLA divides most operations by itself, but not calls and loops: it would gather all images on
    all devices for them.

    Args:
        function: of arrays or pytrees.
        in_shardings: of each argument.
        out_shardings: of each result. In a sequence, `replicated` ones are sums over images, and
            are summed over the devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function
    axis = mesh.axis_names[0]
    specs = {"batch": PartitionSpec(axis), "replicated": PartitionSpec()}
    single = isinstance(out_shardings, str)

    def local(*arrays: object) -> object:
        results = function(*arrays)
        if single:
            return results
        return tuple(
            jax.lax.psum(result, axis) if sharding == "replicated" else result
            for result, sharding in zip(results, out_shardings, strict=True)
        )

    in_specs = tuple(specs[sharding] for sharding in in_shardings)
    out_specs = (
        specs[out_shardings]
        if isinstance(out_shardings, str)
        else tuple(specs[sharding] for sharding in out_shardings)
    )
    return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def replicated(tree: Tree) -> Tree:
    """Constrains a pytree of arrays to be replicated on every device."""
    return _constrained(tree, PartitionSpec())


def batch_sharded(tree: Tree) -> Tree:
    """Constrains arrays `[B, ...]` to be divided by images alone, not within an image."""
    mesh = jax.sharding.get_abstract_mesh()
    return tree if mesh.empty else _constrained(tree, PartitionSpec(mesh.axis_names[0]))


def without_uneven_shards(x: jax.Array) -> jax.Array:
    """Constrains images `[B, H, W, C]` to `batch_sharded` if the devices cannot share H evenly.

    Such maps are the small last ones of a detector. XLA would give some devices a row less or none,
    and then computes wrong kernel gradients if the batch is divided too (seen with jax 0.10.0).
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = 1 if mesh.empty else mesh.size // mesh.axis_sizes[0]
    return batch_sharded(x) if x.shape[1] % parts else x


def _constrained(tree: Tree, spec: PartitionSpec) -> Tree:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return tree
    constrained: Tree = jax.lax.with_sharding_constraint(tree, spec)
    return constrained
