"""Finds the name table and prefix that fit a file of weights."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stillbox.checkpoints.name_tables import rules
from stillbox.checkpoints.names import backbone_tables, names_under
from stillbox.checkpoints.weights_file import Weights
from stillbox.errors import UserError
from stillbox.experiment import schema

EMA = "/ExponentialMovingAverage"
"""Suffix of a variable's moving average in TF1."""


@dataclass(frozen=True)
class NameMap:
    """Maps a detector's arrays to names and layouts in files of weights."""

    table: rules.BackboneTable
    names: Mapping[str, str]
    """By path in our detector, of paths that have a name."""

    def name(self, path: str) -> str:
        """Returns the name of a path, or the path itself if it has none."""
        return self.names.get(path, path)

    def find(self, path: str, held: Collection[str], *, prefer_ema: bool = False) -> str | None:
        """Returns the name, among those `held` in a file, by which a path is read, if any."""
        name = self.name(path)
        candidates = [path] + [name + EMA] * prefer_ema + [name]
        return next((candidate for candidate in candidates if candidate in held), None)

    def count_found(self, paths: Collection[str], held: Collection[str]) -> int:
        """Counts the paths that are found among the names `held` in a file."""
        return sum(self.find(path, held) is not None for path in paths)

    def read(self, path: str, source: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Reads a path under the name `source`; kernels become `[k, k, in, out]`."""
        array = np.asarray(arrays[source])
        # Arrays under our own paths have our layout.
        if source == path or not path.endswith("kernel") or array.ndim != 4:
            return array
        return array.transpose(self.table.convention.kernel_axes)


def choose_name_map(
    weights: Weights,
    model: schema.Model,
    arrays: Mapping[str, Any],
    wanted: Collection[str],
    *,
    scope: rules.Scope,
) -> NameMap:
    """Returns the name map by which most of the wanted arrays are found.

    Args:
        weights: the file.
        model: the detector's configuration.
        arrays: all of the detector's, by path.
        wanted: paths of the arrays to find.
        scope: the kind of model that the weights are of.

    Raises:
        UserError: the file holds the weights several times.
    """
    # If none is found, messages name what such a file usually holds. Of equals the first is the
    # original's.
    return max(
        _candidates(weights, model, arrays, wanted, scope),
        key=lambda candidate: (
            candidate.count_found(wanted, weights.arrays),
            candidate.table.convention.library == weights.library,
        ),
    )


def _candidates(
    weights: Weights,
    model: schema.Model,
    arrays: Mapping[str, Any],
    wanted: Collection[str],
    scope: rules.Scope,
) -> Iterator[NameMap]:
    for table in backbone_tables(model):
        for root in table.roots[scope]:
            given = names_under(root, table, model, arrays)
            names = {path: weights.find(name) for path, name in given.items()}
            yield NameMap(table, names)
            if table.any_prefix:
                sought = [names[path] for path in wanted if path in names]
                prefix = _common_prefix(sought, weights)
                yield NameMap(table, {path: prefix + name for path, name in names.items()})


def _common_prefix(names: list[str], weights: Weights) -> str:
    """Finds the prefix of all names, such as the `module.` of data-parallel training."""
    held = weights.arrays
    ends = [name for name in held if names and name.endswith(f".{names[0]}")]
    prefixes = [end.removesuffix(names[0]) for end in ends]
    complete = [prefix for prefix in prefixes if all(prefix + name in held for name in names)]
    if len(complete) > 1 and not all(name in held for name in names):
        raise UserError(
            f"the file holds these weights {len(complete)} times, under "
            + ", ".join(sorted(complete)),
            where=weights.path,
            fix="save those that you want in a file of their own",
        )
    return complete[0] if complete else ""
