"""The names of modules and variables, of which the paths in checkpoints consist.

An attribute is named in paths like in the code, except where a `Named` holds modules.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from flax import nnx

Path = tuple[str, ...]
"""Names from the outermost module to a module or variable."""
Place = tuple[Any, ...]
"""Attributes from the outermost module to a module or variable."""
Key = TypeVar("Key", int, str)
Item = TypeVar("Item")

# Is sorted after all letters of names: a module stands after its parts.
_END = "~"


class Named(nnx.Module, Mapping[Key, Item]):
    """Modules by number or name; the attribute that holds them is no part of their paths.

    Args:
        name: of each module in paths, with `{}` for its key, such as `projection_{}`.
        items: modules by key, in order; None: there is none for this key.
    """

    def __init__(self, name: str, items: Mapping[Key, Item]) -> None:
        self.name = name
        self.order: tuple[Key, ...] = tuple(items)
        for key, item in items.items():
            setattr(self, name.format(key), item)

    def __getitem__(self, key: Key) -> Item:
        if key not in self.order:
            raise KeyError(key)
        item: Item = getattr(self, self.name.format(key))
        return item

    def __iter__(self) -> Iterator[Key]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)

    __hash__ = nnx.Module.__hash__


def named_modules(module: nnx.Module) -> list[tuple[Path, nnx.Module]]:
    """Returns all modules inside a module and itself, by path; each stands after its parts."""
    modules = [
        (path, node)
        for path, _, node in _nodes(module)
        if isinstance(node, nnx.Module) and not isinstance(node, Named)
    ]
    return sorted(modules, key=lambda item: (*item[0], _END))


def places_of(module: nnx.Module) -> dict[str, Place]:
    """Returns the place of each variable by its path, such as `backbone.conv_0.kernel`."""
    nodes = _nodes(module)
    return {".".join(path): place for path, place, node in nodes if isinstance(node, nnx.Variable)}


def variables_of(module: nnx.Module) -> dict[str, nnx.Variable]:
    """Returns each variable of a module by its path."""
    nodes = _nodes(module)
    return {".".join(path): node for path, _, node in nodes if isinstance(node, nnx.Variable)}


def _nodes(module: nnx.Module) -> list[tuple[Path, Place, nnx.Module | nnx.Variable]]:
    nodes = [
        (place, node)
        for place, node in nnx.iter_graph(module)
        if isinstance(node, nnx.Module | nnx.Variable)
    ]
    unnamed = {place for place, node in nodes if isinstance(node, Named)}

    def path_of(place: Place) -> Path:
        ends = enumerate(place, start=1)
        return tuple(str(name) for end, name in ends if place[:end] not in unnamed)

    return [(path_of(place), place, node) for place, node in nodes]
