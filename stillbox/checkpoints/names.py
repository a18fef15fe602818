"""Names of a detector's parameters in other codebases, by the tables in `name_tables`.

`choose_name_map` finds the table and prefix that fit a file of weights.
"""

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stillbox.checkpoints import name_tables
from stillbox.checkpoints.array_files import LazyArrays
from stillbox.checkpoints.name_tables import rules
from stillbox.checkpoints.weights_file import Weights
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.imports import import_entry_points

# Each module registers its tables; the last ones of a backbone are stillbox's own.
import_entry_points("stillbox.name_tables")
for _module in pkgutil.iter_modules(name_tables.__path__, f"{name_tables.__name__}."):
    importlib.import_module(_module.name)

_NO_ROOTS: Mapping[rules.Scope, tuple[str, ...]] = {"classification": ("",), "detection": ("",)}
_NO_TABLE = rules.BackboneTable(rules.TF_LAYERS, _NO_ROOTS, rules=())
_NORM = re.compile(r"norm(?:_(\d+))?")
_ROUNDING = re.compile(r"(?:weights|act)_quant")


def backbone_tables(model: schema.Model) -> tuple[rules.BackboneTable, ...]:
    """Returns the name tables of a model's backbone; an empty one if none is registered."""
    kind = type(model.parts.get("backbone"))
    return rules.BACKBONES.get(kind, (_NO_TABLE,)) + tuple(rules.OBJECT_PATHS.get(kind, ()))


def object_path_table(model: schema.Model) -> rules.BackboneTable | None:
    """Returns the table of a backbone and neck in TF2 checkpoints, if one is registered."""
    tables = rules.OBJECT_PATHS.get(type(model.parts.get("backbone")), [None])
    neck = type(model.parts.get("neck"))
    fits = (table for table in tables if table and (table.codebase, neck) in rules.PARTS)
    return next(fits, tables[-1])


def reference_names(
    model: schema.Model, arrays: Mapping[str, Any], *, scope: rules.Scope = "detection"
) -> dict[str, str]:
    """Names parameters and moving statistics as the original's checkpoints do.

    Only the `shape` of the `arrays`, by path in our detector, is read, since some names hold a
    number of channels. The scope `classification` gives the names in a classifier's checkpoint,
    which holds `model.classifier_parts` only; several of its arrays may have the same name. Arrays
    of parts without a name table are absent, and all arrays if the backbone has none, since names
    of necks and heads depend on the backbone's codebase.
    """
    table = backbone_tables(model)[0]
    names = names_under(table.roots[scope][0], table, model, arrays)
    if scope == "detection":
        return names
    return {path: name for path, name in names.items() if _part(path) in model.classifier_parts}


def object_paths(model: schema.Model, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Names arrays as the original's TF2 checkpoints do, if their parts have a table."""
    table = object_path_table(model)
    return names_under(table.roots["detection"][0], table, model, arrays) if table else {}


def names_under(
    root: str, table: rules.BackboneTable, model: schema.Model, arrays: Mapping[str, Any]
) -> dict[str, str]:
    """Names arrays by a table of the backbone, with `root` as its `{root}`."""
    shapes = {path: tuple(array.shape) for path, array in arrays.items()}
    if not table.rules:
        return {}
    fields = _fields(root, table, model)
    roots = {part: values["root"] for part, values in fields.items()}
    context = rules.Context(model.parts, table, shapes, roots)
    layers = _rules(table.rules, context)
    for config in model.parts.values():
        layers += _rules(rules.PARTS.get((table.codebase, type(config)), ()), context)
    names = {}
    for path in shapes:
        layer, variable = _split(path)
        values = fields.get(_part(path), {})
        candidates = (_name(rule, layer, variable, context, values) for rule in layers)
        name = next(filter(None, candidates), None)
        if name:
            names[path] = name
    return names


def parts_without_names(
    model: schema.Model, paths: Iterable[str], names: Mapping[str, str]
) -> list[str]:
    """Describes the parts of a detector without names for their arrays, such as `neck 'fpn'`."""
    unnamed = set(map(_part, paths)) - set(map(_part, names))
    # Parts without a kind are named after the model.
    kinds = {part: getattr(config, "kind", model.kind) for part, config in model.parts.items()}
    return [f"{part} {kinds.get(part, model.kind)!r}" for part in sorted(unnamed)]


def _part(path: str) -> str:
    return path.partition(".")[0]


def _fields(
    root: str, table: rules.BackboneTable, model: schema.Model
) -> Mapping[str, Mapping[str, str]]:
    """Returns the values of `{root}` and `{tap}` in templates, by part."""
    classes = ((table.codebase, config) for config in type(model).__mro__)
    scopes = next((rules.SCOPES[key] for key in classes if key in rules.SCOPES), {})
    scopes = scopes(model.parts) if callable(scopes) else scopes
    backbone, neck = model.parts["backbone"], model.parts.get("neck")
    depth = getattr(backbone, "depth", None)
    tap = table.tap_name(neck.taps_of(backbone)[-1]) if neck is not None else ""
    return {
        part: {"root": root.format(depth=depth, scope=scopes.get(part, "")), "tap": tap}
        for part in model.parts
    }


def _rules(table: rules.Rules, context: rules.Context) -> tuple[rules.LayerRule, ...]:
    return table(context) if callable(table) else table


def _split(path: str) -> tuple[str, str]:
    """Splits `neck.extra_2_1x1.norm.mean` into `neck.extra_2_1x1` and `norm.mean`."""
    layer, variable = path.rsplit(".", 1)
    owner, _, last = layer.rpartition(".")
    # The variables of a batch norm, and the ranges of roundings, belong to the layer before.
    inner = _NORM.fullmatch(last) or _ROUNDING.fullmatch(last)
    return (owner, f"{last}.{variable}") if inner else (layer, variable)


class _Number(int):
    """A number in a template, where `{0:+3}` adds 3."""

    def __format__(self, offset: str) -> str:
        return str(self + int(offset or 0))


def _name(
    rule: rules.LayerRule,
    layer: str,
    variable: str,
    context: rules.Context,
    fields: Mapping[str, str],
) -> str | None:
    """Returns the original's name of a layer's variable; None if it or the layer has none."""
    match = re.fullmatch(rule.pattern, layer)
    if match is None:
        return None
    convention = context.table.convention
    groups = [_Number(group) if group.isdecimal() else group for group in match.groups()]
    counted = match.expand(rule.channels_of) if rule.channels_of else layer
    channels = context.shapes.get(f"{counted}.kernel", (0,))[-1]
    scope = rule.template.format(*groups, channels=channels, **fields)
    owner, _, last = variable.rpartition(".")
    if _ROUNDING.fullmatch(owner):
        # Only slim's layers are rewritten by contrib.quantize.
        operations = rule.operations.format(*groups, scope=scope, **fields)
        return f"{operations}/{owner}/{last}" if convention is rules.SLIM else None
    if owner:
        norm = _Number(owner.removeprefix("norm").removeprefix("_") or 0)
        scope = rule.norm.format(*groups, scope=scope, norm=norm, **fields)
        name = convention.norm.get(last)
    else:
        name = convention.variables.get(_kind(rule, layer, last, context.shapes))
    return scope + convention.separator + name if name else None


def _kind(rule: rules.LayerRule, layer: str, variable: str, shapes: rules.ArrayShapes) -> str:
    """Returns the name of a variable in a `Convention`, which distinguishes kinds of kernels."""
    if variable != "kernel":
        return variable
    if f"{layer}.depthwise_kernel" in shapes:
        return "pointwise_kernel"
    return "depthwise_kernel" if rule.depthwise else "kernel"


EMA = "/ExponentialMovingAverage"
"""Suffix of a variable's moving average in TF1."""


@dataclass(frozen=True)
class NameMap:
    """Maps a detector's arrays to names and layouts in files of weights."""

    table: rules.BackboneTable
    names: Mapping[str, str]
    """By path in our detector, of paths that have a name."""
    depthwise: Collection[str] = ()
    """The paths of depthwise kernels."""

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

    def shape(self, path: str, source: str, arrays: Mapping[str, np.ndarray]) -> tuple[int, ...]:
        """Returns the shape of what `read` returns, without reading it if the file tells."""
        shape = arrays.shape(source) if isinstance(arrays, LazyArrays) else np.shape(arrays[source])
        return tuple(shape[axis] for axis in self._axes(path, source, len(shape)))

    def read(self, path: str, source: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Reads a path under the name `source`, in our layout."""
        array = np.asarray(arrays[source])
        return array.transpose(self._axes(path, source, array.ndim))

    def _axes(self, path: str, source: str, count: int) -> Sequence[int]:
        """Returns the axes of an array in the file, in the order of ours."""
        # Arrays under our own paths have our layout.
        if source == path or not path.endswith("kernel") or count != 4:
            return range(count)
        convention = self.table.convention
        return convention.depthwise_axes if path in self.depthwise else convention.kernel_axes


def choose_name_map(
    weights: Weights,
    model: schema.Model,
    arrays: Mapping[str, Any],
    wanted: Collection[str],
    *,
    scope: rules.Scope,
) -> NameMap:
    """Returns the name map by which most of the wanted arrays are found.

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
    depthwise = {path for path, array in arrays.items() if tuple(array.shape[3:]) == (1,)}
    for table in backbone_tables(model):
        for root in table.roots[scope]:
            given = names_under(root, table, model, arrays)
            names = {path: weights.find(name) for path, name in given.items()}
            yield NameMap(table, names, depthwise)
            if table.any_prefix:
                theirs = [names[path] for path in wanted if path in names]
                prefix = _common_prefix(theirs, weights)
                prefixed = {path: prefix + name for path, name in names.items()}
                yield NameMap(table, prefixed, depthwise)


def _common_prefix(names: list[str], weights: Weights) -> str:
    """Finds the prefix of most names, such as the `module.` of data-parallel training.

    A backbone of another depth lacks some of the names.
    """
    wanted, depth = set(names), max((name.count(".") for name in names), default=0)
    counts: Counter[str] = Counter()
    for held in weights.arrays:
        parts = held.rsplit(".", depth + 1)
        for cut in range(1, len(parts)):
            if ".".join(parts[cut:]) in wanted:
                counts[".".join([*parts[:cut], ""])] += 1
    most = max(counts.values(), default=0)
    # Some names are ends of others by chance.
    if 2 * most <= len(wanted) or sum(name in weights.arrays for name in wanted) >= most:
        return ""
    prefixes = sorted(prefix for prefix, count in counts.items() if count == most)
    if len(prefixes) > 1:
        raise UserError(
            f"the file holds these weights {len(prefixes)} times, under {', '.join(prefixes)}",
            where=weights.path,
            fix="save those that you want in a file of their own",
        )
    return prefixes[0]
