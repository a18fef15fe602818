"""Weights from elsewhere into a detector, with an account of every array."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.checkpoints.import_report import ImportReport, Mismatch, explain_failure
from stillbox.checkpoints.names import Scope, reference_names
from stillbox.checkpoints.weights_file import Weights, open_weights
from stillbox.errors import UserError
from stillbox.experiment import schema

_EMA = "/ExponentialMovingAverage"
# What TF1's optimizers keep beside a variable, and beside the graph.
_SLOTS = r"(Momentum|RMSProp|Adam|Adagrad|Adadelta|Ftrl)(_\d+)?"
_COUNTERS = r"global_step|beta[12]_power|learning_rate"


def import_weights(
    detector: nnx.Module,
    model: schema.Model,
    path: str | Path,
    *,
    scope: Scope,
    load_heads: bool,
    min_loaded: float,
    prefer_ema: bool = False,
) -> ImportReport:
    """Puts weights of another training run into a detector.

    Wanted are, by scope: the backbone of a classifier; or backbone and neck of a detector, and its
    head too where `load_heads` says so. What is not found, or has another shape, stays as it is.

    Args:
        detector: its parameters and moving statistics are replaced in place.
        model: the detector's description, for the names that the parts have in TF1.
        path: see `open_weights`.
        scope: what kind of model the weights come from.
        load_heads: want the head of a detector too.
        min_loaded: least share of the wanted arrays that must be found, 0 to 1.
        prefer_ema: take the moving average of a parameter where there is one.

    Returns:
        What was loaded, skipped, missing and of another shape.

    Raises:
        UserError: nothing, or less than `min_loaded`, was found; the detector is then unchanged.
            Or the weights cannot be read.
    """
    weights = open_weights(path, prefer_ema=prefer_ema)
    variables = _variables(detector)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    wanted = [name for name in shapes if _is_wanted(name, scope, load_heads)]
    names = reference_names(model, variables, scope=scope)

    sources = _choose_sources(wanted, names, weights, prefer_ema)
    arrays = {name: np.asarray(weights.arrays[source]) for name, source in sources.items()}
    mismatched = tuple(
        Mismatch(name, sources[name], shapes[name], array.shape)
        for name, array in arrays.items()
        if array.shape != shapes[name]
    )
    loaded = {name: sources[name] for name in arrays if arrays[name].shape == shapes[name]}
    report = ImportReport(
        path=weights.path,
        loaded=loaded,
        skipped=_explain_rest(weights, sources, names),
        missing={name: names.get(name, name) for name in wanted if name not in sources},
        mismatched=mismatched,
        notes=_head_notes(mismatched, model),
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


def _choose_sources(
    wanted: list[str], names: Mapping[str, str], weights: Weights, prefer_ema: bool
) -> dict[str, str]:
    """Finds for every wanted path the name in the file that it is read from."""
    sources = {}
    for path in wanted:
        name = names.get(path, path)
        candidates = [path] + [name + _EMA] * prefer_ema + [name]
        found = next((candidate for candidate in candidates if candidate in weights.arrays), None)
        if found:
            sources[path] = found
    return sources


def _found_by_scope(
    model: schema.Model, variables: Mapping[str, Any], weights: Weights
) -> dict[str, int]:
    scopes: tuple[Scope, ...] = ("classification", "detection")
    return {
        scope: sum(
            name in weights.arrays
            for name in reference_names(model, variables, scope=scope).values()
        )
        for scope in scopes
    }


def _explain_rest(
    weights: Weights, sources: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, str]:
    """Says for every array of the file that was not asked for why it was not."""
    used = set(sources.values())
    paths = {name: path for path, name in names.items()} | {path: path for path in names}
    return {name: _reason(name, paths, used) for name in weights.arrays if name not in used}


def _reason(name: str, paths: Mapping[str, str], used: set[str]) -> str:
    *_, last = name.split("/")
    if name + _EMA in used:
        return "its moving average was taken"
    if name.endswith(_EMA):
        return "moving average"
    if re.fullmatch(_SLOTS, last):
        return "optimizer slot"
    if re.fullmatch(_COUNTERS, last):
        return "training counter"
    if "/Logits/" in name:
        return "classifier's logits"
    if name in paths:
        part = paths[name].partition(".")[0]
        return f"{part} not asked for"
    if last == "gamma" and name.replace("gamma", "beta") in paths:
        return "gamma, but this model's batch norm has no scale"
    return "no such parameter in this model"


def _head_notes(mismatched: tuple[Mismatch, ...], model: schema.Model) -> tuple[str, ...]:
    """Says in words what the shapes of a head for other classes mean."""
    logits = model.num_classes + model.background_class
    for mismatch in mismatched:
        if mismatch.path.endswith(".class_.bias"):
            anchors = mismatch.wanted[0] // logits
            return (
                f"the class head in the file has {mismatch.found[0] / anchors:g} logits an anchor, "
                f"this model's has {logits}: heads of another shape keep their fresh weights",
            )
    return ()
