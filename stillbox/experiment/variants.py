"""Parts that come in kinds, and what implements each kind.

A family is a class that derives from `RegisteredConfig` directly, such as `Backbone`. Its members
derive from the family, have a `kind`, and are registered by their definition. The implementation
of a member registers itself; the family's docstring says how it is called:

    @dataclass(frozen=True, kw_only=True)
    class Charbonnier(LocalizationLoss, kind="charbonnier"):
        epsilon: Positive = 0.001

    @implements(Charbonnier)
    def charbonnier_loss(config: Charbonnier, ...) -> jax.Array: ...

So a part can be added from one file, inside this package or outside of it.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from stillbox.errors import UserError, nearest

Implementation = TypeVar("Implementation", bound=Callable[..., Any])

_IMPLEMENTATIONS: dict[type, Callable[..., Any]] = {}
_REGISTRATIONS: list[type] = []
"""The members in the order of `implements`."""


class RegisteredConfig:
    """Base of every part of an experiment that comes in kinds."""

    kind: ClassVar[str]
    """The word that selects the member in YAML and `--set`."""
    variants: ClassVar[dict[str, type]]
    """Members of the family by kind."""
    # Declared alone: every member is a dataclass.
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        if cls.__base__ is RegisteredConfig:
            cls.variants = {}
        if kind is None:
            return
        other = cls.variants.get(kind)
        if other is not None and _name(other) != _name(cls):
            problem = f"two classes have the kind {kind!r}: {_name(other)} and {_name(cls)}"
            raise UserError(problem, fix="give one of them another kind")
        cls.kind = kind
        cls.variants[kind] = cls


def implements(config: type[RegisteredConfig]) -> Callable[[Implementation], Implementation]:
    """Registers the decorated class or function as the implementation of a member."""

    def register(implementation: Implementation) -> Implementation:
        _IMPLEMENTATIONS[config] = implementation
        _REGISTRATIONS.append(config)
        return implementation

    return register


def registrations() -> int:
    """Returns how often `implements` has registered an implementation, new or replaced.

    A cache of results by configuration has this number in its key.
    """
    return len(_REGISTRATIONS)


def implementation_of(config: RegisteredConfig) -> Callable[..., Any]:
    """Returns the registered implementation of a member.

    Raises:
        UserError: there is none; names the kinds of the family that have one.
    """
    implementation = _IMPLEMENTATIONS.get(type(config))
    if implementation is None:
        others = [kind for kind, cls in config.variants.items() if cls in _IMPLEMENTATIONS]
        raise UserError(
            f"the kind {config.kind!r} has no implementation ({_name(type(config))})",
            fix=f"decorate one with @implements, or take another kind; "
            f"{nearest(config.kind, others)}",
        )
    return implementation


def import_all(package: str, path: Iterable[str]) -> None:
    """Imports every module of a package and below it; each registers its implementations."""
    for module in pkgutil.walk_packages(path, f"{package}."):
        importlib.import_module(module.name)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
