"""Which framework's names a file of weights speaks."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stillbox.checkpoints.name_tables.rules import BackboneNames, Scope
from stillbox.checkpoints.names import BACKBONES, HasShape, names_under
from stillbox.checkpoints.weights_file import Weights
from stillbox.errors import UserError
from stillbox.experiment import schema


@dataclass(frozen=True)
class Dialect:
    """One way in which weights name a detector's arrays, and lay out its kernels."""

    table: BackboneNames
    """Where the names are from."""
    names: Mapping[str, str]
    """By path in our detector; of what has one."""

    def found(self, paths: Collection[str], held: Collection[str]) -> int:
        """Counts the paths whose arrays are among the names that a file holds."""
        return sum(path in held or self.names.get(path) in held for path in paths)

    def convert(self, path: str, array: np.ndarray) -> np.ndarray:
        """Returns an array of the file in the layout that its path has here."""
        if not path.endswith("kernel") or array.ndim != 4:
            return array
        return array.transpose(self.table.spelling.kernel_axes)


def choose_dialect(
    weights: Weights,
    model: schema.Model,
    arrays: Mapping[str, HasShape],
    wanted: Collection[str],
    *,
    scope: Scope,
) -> Dialect:
    """Finds the dialect in which most of what is wanted is found.

    Args:
        weights: the file.
        model: the detector's description.
        arrays: all of the detector's, by path.
        wanted: those of their paths that count.
        scope: what kind of model the weights come from.

    Raises:
        UserError: the weights are there more than once.
    """
    candidates = _dialects(weights, model, arrays, wanted, scope)
    # Where nothing is found, a message should name what such a file usually holds. Of equals the
    # first is the original's.
    return max(
        candidates,
        key=lambda dialect: (
            dialect.found(wanted, weights.arrays),
            dialect.table.spelling.library == weights.library,
        ),
    )


def _dialects(
    weights: Weights,
    model: schema.Model,
    arrays: Mapping[str, HasShape],
    wanted: Collection[str],
    scope: Scope,
) -> Iterator[Dialect]:
    for table in BACKBONES[type(model.backbone)]:
        for root in table.roots[scope]:
            names = names_under(root, table, model, arrays)
            yield Dialect(table, names)
            if table.any_root:
                sought = [names[path] for path in wanted if path in names]
                prefix = _common_prefix(sought, weights)
                yield Dialect(table, {path: prefix + name for path, name in names.items()})


def _common_prefix(names: list[str], weights: Weights) -> str:
    """Finds what stands before all names, such as the `module.` of a parallel training."""
    held = weights.arrays
    ends = [name for name in held if names and name.endswith(f".{names[0]}")]
    prefixes = [end.removesuffix(names[0]) for end in ends]
    complete = [prefix for prefix in prefixes if all(prefix + name in held for name in names)]
    if len(complete) > 1 and not all(name in held for name in names):
        raise UserError(
            f"the weights are there {len(complete)} times, under {', '.join(sorted(complete))}",
            where=weights.path,
            fix="save those that you want in a file of their own",
        )
    return complete[0] if complete else ""
