"""Weights from elsewhere into a detector, with an account of every array."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.checkpoints.dialects import Dialect, choose_dialect
from stillbox.checkpoints.import_reasons import EMA, backbone_notes, explain_rest, head_notes
from stillbox.checkpoints.import_report import ImportReport, Mismatch, explain_failure
from stillbox.checkpoints.name_tables.rules import Scope
from stillbox.checkpoints.weights_file import Weights, open_weights
from stillbox.errors import UserError
from stillbox.experiment import schema


def import_weights(
    detector: nnx.Module,
    model: schema.Model,
    path: str | Path,
    *,
    scope: Scope,
    load_heads: bool,
    min_loaded: float,
    prefer_ema: bool = False,
    skip: tuple[str, ...] = (),
) -> ImportReport:
    """Puts weights of another training run into a detector.

    Wanted are, by scope: the backbone of a classifier; or backbone and neck of a detector, and its
    head too where `load_heads` says so. What is not found, or has another shape, stays as it is.

    Args:
        detector: its parameters and moving statistics are replaced in place.
        model: the detector's description, for the names that other frameworks give its parts.
        path: see `open_weights`.
        scope: what kind of model the weights come from.
        load_heads: want the head of a detector too.
        min_loaded: least share of the wanted arrays that must be found, 0 to 1.
        prefer_ema: take the moving average of a parameter where there is one.
        skip: regular expressions; an array is not wanted where one of them is found in its path or
            in the name that the file has for it.

    Returns:
        What was loaded, skipped, missing and of another shape.

    Raises:
        UserError: nothing, or less than `min_loaded`, was found; the detector is then unchanged.
            Or the weights cannot be read, or a pattern of `skip` matches nothing.
    """
    weights = open_weights(path, prefer_ema=prefer_ema)
    variables = _variables(detector)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    wanted = [name for name in shapes if _is_wanted(name, scope, load_heads)]
    dialect = choose_dialect(weights, model, variables, wanted, scope=scope)
    left_out = _matching(wanted, dialect, skip)
    wanted = [name for name in wanted if name not in left_out]

    sources = _choose_sources(wanted, dialect, weights, prefer_ema)
    arrays = {name: _read(weights, dialect, name, source) for name, source in sources.items()}
    mismatched = tuple(
        Mismatch(name, sources[name], shapes[name], array.shape)
        for name, array in arrays.items()
        if array.shape != shapes[name]
    )
    loaded = {name: sources[name] for name in arrays if arrays[name].shape == shapes[name]}
    report = ImportReport(
        path=weights.path,
        loaded=loaded,
        skipped=explain_rest(weights.arrays, sources, variables, dialect)
        | dict.fromkeys(_held(left_out, dialect, weights), "train.fine_tune.skip matches it"),
        missing={name: dialect.names.get(name, name) for name in wanted if name not in sources},
        mismatched=mismatched,
        notes=backbone_notes(dialect, loaded, mismatched, model) + head_notes(mismatched, model),
    )
    if not loaded or report.loaded_share < min_loaded:
        # Rounded down: 399 of 400 must not read as all of them.
        percent = int(report.loaded_share * 100)
        raise UserError(
            f"only {len(loaded)} of {len(wanted)} wanted arrays ({percent}%) were found, "
            f"at least {min_loaded:.0%} are asked for",
            where=weights.path,
            fix=explain_failure(report, weights.arrays, _found_by_scope(model, variables, weights)),
        )
    for name in loaded:
        variables[name].set_value(jnp.asarray(arrays[name], variables[name].dtype))
    return report


def _variables(detector: nnx.Module) -> dict[str, Any]:
    """Returns parameters and moving statistics by dotted path."""
    return {
        ".".join(map(str, path)): variable
        for path, variable in nnx.iter_graph(detector)
        if isinstance(variable, nnx.Param | nnx.BatchStat)
    }


def _is_wanted(path: str, scope: Scope, load_heads: bool) -> bool:
    if scope == "classification":
        return path.startswith("backbone.")
    return load_heads or not path.startswith("head.")


def _matching(wanted: list[str], dialect: Dialect, patterns: tuple[str, ...]) -> set[str]:
    """Returns the wanted paths that a pattern is found in, or in their names."""
    found: set[str] = set()
    for pattern in patterns:
        matches = {
            path
            for path in wanted
            if re.search(pattern, path) or re.search(pattern, dialect.names.get(path, ""))
        }
        if not matches:
            names = [dialect.names.get(path, path) for path in wanted]
            raise UserError(
                f"the pattern {pattern!r} matches nothing that is wanted",
                where="train.fine_tune.skip",
                fix=f"names look like {', '.join(sorted(names)[:3])}",
            )
        found |= matches
    return found


def _held(paths: set[str], dialect: Dialect, weights: Weights) -> set[str]:
    names = {name for path in paths for name in (path, dialect.names.get(path, path))}
    return {name for name in names if name in weights.arrays}


def _choose_sources(
    wanted: list[str], dialect: Dialect, weights: Weights, prefer_ema: bool
) -> dict[str, str]:
    """Finds for every wanted path the name in the file that it is read from."""
    sources = {}
    for path in wanted:
        name = dialect.names.get(path, path)
        candidates = [path] + [name + EMA] * prefer_ema + [name]
        found = next((candidate for candidate in candidates if candidate in weights.arrays), None)
        if found:
            sources[path] = found
    return sources


def _read(weights: Weights, dialect: Dialect, path: str, source: str) -> np.ndarray:
    array = np.asarray(weights.arrays[source])
    # What has our own name has our layout.
    return array if source == path else dialect.convert(path, array)


def _found_by_scope(
    model: schema.Model, variables: Mapping[str, Any], weights: Weights
) -> dict[str, int]:
    scopes: tuple[Scope, ...] = ("classification", "detection")
    found: dict[str, int] = {}
    for scope in scopes:
        wanted = [path for path in variables if _is_wanted(path, scope, load_heads=True)]
        dialect = choose_dialect(weights, model, variables, wanted, scope=scope)
        found[scope] = dialect.found(wanted, weights.arrays)
    return found
