"""What a traced function may know of the devices that it will run on.

A program for several devices is traced in the context of its mesh, which
`jax.sharding.use_abstract_mesh` makes. Its first axis divides a batch, the others divide images.
Without a context there is one device, and nothing here does anything.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import jax
from jax.sharding import PartitionSpec

Tree = TypeVar("Tree")

Share = Literal["rows", "all"]
"""What a device has of an array: the rows `[B / D, ...]` of its images, or all of it."""


def images_are_cut() -> bool:
    """Says whether devices share an image."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > mesh.axis_sizes[0]


def on_own_rows(
    function: Callable[..., Any], arguments: Sequence[Share], results: Share | Sequence[Share]
) -> Callable[..., Any]:
    """Lets every device run `function` on the images that it has, without asking the others.

    XLA divides most operations so by itself. It does not look into calls and loops, and would send
    all images to all devices for them.

    Args:
        function: of arrays, or pytrees of them.
        arguments: what a device has of each argument.
        results: what it makes of each result; those that belong to all images are sums over the
            images, and are summed over the devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function
    axis = mesh.axis_names[0]
    specs = {"rows": PartitionSpec(axis), "all": PartitionSpec()}

    def local(*arrays: Any) -> Any:  # noqa: ANN401
        made = function(*arrays)
        if isinstance(results, str):
            return made
        return tuple(
            jax.lax.psum(part, axis) if share == "all" else part
            for part, share in zip(made, results, strict=True)
        )

    out = specs[results] if isinstance(results, str) else tuple(specs[one] for one in results)
    return jax.shard_map(
        local, in_specs=tuple(specs[one] for one in arguments), out_specs=out, check_vma=False
    )


def whole(tree: Tree) -> Tree:
    """Keeps a pytree of arrays whole on every device, whatever is done with it afterwards."""
    return _placed(tree, PartitionSpec())


def whole_rows(tree: Tree) -> Tree:
    """Keeps all of an image's part of `[B, ...]` together, whatever is done with it afterwards."""
    mesh = jax.sharding.get_abstract_mesh()
    return tree if mesh.empty else _placed(tree, PartitionSpec(mesh.axis_names[0]))


def cut_evenly(x: jax.Array) -> jax.Array:
    """Keeps images `[B, H, W, C]` whole on a device where those that share them differ in rows.

    Such maps are small, the last of a detector. XLA would give some devices a row less or none, and
    makes wrong kernel gradients of that where the batch is divided too (seen with jax 0.10.0).
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = 1 if mesh.empty else mesh.size // mesh.axis_sizes[0]
    return whole_rows(x) if x.shape[1] % parts else x


def _placed(tree: Tree, spec: PartitionSpec) -> Tree:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return tree
    placed: Tree = jax.lax.with_sharding_constraint(tree, spec)
    return placed
