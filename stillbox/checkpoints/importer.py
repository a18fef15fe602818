"""Imports weights into a detector, with a report on every array."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.checkpoints.array_files import check_finite
from stillbox.checkpoints.first_layer import (
    is_first_layer,
    note_on_channels,
    with_image_channels,
)
from stillbox.checkpoints.graphs.matching import MatchedArrays, match_weights
from stillbox.checkpoints.import_report import (
    ImportReport,
    Mismatch,
    explain_failure,
    explain_rest,
    notes_on_parts,
)
from stillbox.checkpoints.name_tables.rules import Library, Scope
from stillbox.checkpoints.names import NameMap, choose_name_map, parts_without_names
from stillbox.checkpoints.packed import find_model
from stillbox.checkpoints.pretrained import resolve_weights
from stillbox.checkpoints.trained import TrainedModel
from stillbox.checkpoints.weights_file import Weights, open_weights
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.build import build_detector
from stillbox.models.layers.quantization import RANGE_ENDS
from stillbox.models.paths import variables_of
from stillbox.models.variables import split_detector
from stillbox.printing import count_text
from stillbox.records.label_map import LabelMap
from stillbox.references import Setting
from stillbox.textformat.name_patterns import found_in

_MEAN = ".mean"
_KINDS: Mapping[Library | None, str] = {"tensorflow": "TF1 checkpoints", "keras": "TF2 checkpoints"}


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What is wanted of weights, and how much of it must be found; by default a whole detector."""

    scope: Scope = "detection"
    """The kind of model that the weights are of. Of a classifier only those parts are wanted that
    its network has too."""
    load_heads: bool = True
    """Want the heads of a detector too."""
    min_loaded: float = 1.0
    """Least share of the wanted arrays that must be found, 0 to 1."""
    prefer_ema: bool = False
    """Take the moving average of a parameter if the file has one."""
    skip: tuple[str, ...] = ()
    """Regular expressions, searched in an array's path and in its name in the file; an array that
    matches is not wanted."""
    for_training: bool = False
    """Training begins with the weights. It measures the ranges of quantisation that the file lacks;
    these are not wanted."""

    @classmethod
    def of_training(cls, fine_tune: schema.FineTune) -> Self:
        """Returns the options for the first weights of a training."""
        return cls(
            scope=fine_tune.scope,
            load_heads=fine_tune.load_heads,
            min_loaded=fine_tune.min_loaded,
            skip=fine_tune.skip,
            for_training=True,
        )

    def wants(self, path: str, model: schema.Model) -> bool:
        """Whether an array is part of what is wanted, apart from `skip`."""
        part = path.partition(".")[0]
        if self.scope == "classification":
            return part in model.classifier_parts
        return self.load_heads or part not in model.head_parts


def load_weights(experiment: schema.Experiment, weights: str) -> TrainedModel:
    """Builds the experiment's detector with weights from a file or a model directory.

    Raises:
        UserError: the file cannot be read, or a parameter is missing or has another shape.
    """
    detector = build_detector(experiment.model, quantization=experiment.train.quantization)
    options = ImportOptions(prefer_ema=experiment.evaluation.use_ema)
    report = import_weights(detector, experiment.model, weights, options)
    _, params, stats = split_detector(detector)
    stored = find_model(resolve_weights(weights))
    return TrainedModel(
        experiment=experiment,
        label_map=LabelMap.from_text(stored.label_map, str(stored.folder))
        if stored and stored.label_map
        else None,
        params=params,
        stats=stats,
        source=weights,
        report=report,
    )


def import_weights(
    detector: nnx.Module, model: schema.Model, path: str | Path, options: ImportOptions
) -> ImportReport:
    """Replaces parameters and moving statistics of a detector, in place.

    Arrays that are not found, or have another shape, keep their values.

    Args:
        path: see `open_weights`.

    Raises:
        UserError: as `read_weights`; the detector is then unchanged.
    """
    variables = {
        path: variable
        for path, variable in variables_of(detector).items()
        if isinstance(variable, nnx.Param | nnx.BatchStat)
    }
    report, arrays = read_weights(variables, model, path, options)
    for name, array in arrays.items():
        variables[name].set_value(jnp.asarray(array, variables[name].dtype))
    return report


def read_weights(
    variables: Mapping[str, Any], model: schema.Model, path: str | Path, options: ImportOptions
) -> tuple[ImportReport, dict[str, np.ndarray]]:
    """Reads the arrays that a detector takes from weights, on the host; returns them by path.

    `variables` have the shape of each parameter and moving statistic; `path` as in `open_weights`.

    Raises:
        UserError: nothing, or less than `min_loaded`, was found; the weights cannot be read, or
            are not finite; a part has no name table for a TF1 checkpoint; or a pattern of `skip`
            matches nothing.
    """
    scope, prefer_ema = options.scope, options.prefer_ema
    weights = open_weights(path, prefer_ema=prefer_ema, model=model, scope=scope)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    wanted = [name for name in shapes if options.wants(name, model)]
    weights, name_map = _identify(weights, model, variables, wanted, scope)
    left_out = _matching(wanted, name_map, options.skip)

    by_path = {
        name: name_map.find(name, weights.arrays, prefer_ema=prefer_ema)
        for name in wanted
        if name not in left_out
    }
    sources = {name: source for name, source in by_path.items() if source}
    missing = {
        name: name_map.name(name)
        for name in by_path
        if name not in sources and not (options.for_training and name.endswith(RANGE_ENDS))
    }
    # Object paths and names are different things.
    strange = (weights.library == "keras") != (name_map.table.convention.library == "keras")
    unnamed = parts_without_names(model, missing, {} if strange else name_map.names)
    if unnamed and weights.library in _KINDS:
        _refuse_parts(unnamed, weights, options)
    # An array of another shape may have any size: it is not read.
    held = {name: name_map.shape(name, at, weights.arrays) for name, at in sources.items()}
    differing = {name: shape for name, shape in held.items() if shape != shapes[name]}
    first = [name for name, shape in differing.items() if is_first_layer(shape, shapes[name])]
    misfits = differing.keys() - first
    mismatched = tuple(
        Mismatch(name, sources[name], shapes[name], shape)
        for name, shape in differing.items()
        if name in misfits
    )
    loaded = {name: at for name, at in sources.items() if name not in misfits}
    arrays = {name: name_map.read(name, at, weights.arrays) for name, at in loaded.items()}
    for name in first:
        arrays[name] = with_image_channels(arrays[name], shapes[name][2])
    report = ImportReport(
        path=weights.path,
        loaded=loaded,
        skipped=explain_rest(weights.arrays, set(sources.values()), variables, left_out, name_map),
        missing=missing,
        mismatched=mismatched,
        without_statistics=_without_statistics(weights, arrays),
        notes=notes_on_parts(name_map, loaded, mismatched, model)
        + _notes_on_frozen_norms(shapes, loaded, model, options)
        + tuple(note_on_channels(held[name], shapes[name]) for name in first),
        departure=weights.departure,
    )
    if not loaded or report.loaded_share < options.min_loaded:
        raise _too_few(report, weights, variables, model, unnamed, options)
    check_finite({sources[name]: array for name, array in arrays.items()}, weights.path)
    return report, arrays


def _too_few(
    report: ImportReport,
    weights: Weights,
    variables: Mapping[str, Any],
    model: schema.Model,
    unnamed: Sequence[str],
    options: ImportOptions,
) -> UserError:
    """Returns the error for weights with too few of the wanted arrays."""
    # Rounded down: 399 of 400 must not read as all of them.
    percent = int(report.loaded_share * 100)
    fix = explain_failure(
        report,
        weights.arrays,
        _found_by_scope(model, variables, weights),
        unnamed,
        model.head_parts,
        for_training=options.for_training,
    )
    return UserError(
        f"only {len(report.loaded)} of {report.wanted} wanted arrays ({percent}%) were found, "
        f"at least {options.min_loaded:.0%} are asked for",
        where=weights.path,
        fix=fix,
    )


def _identify(
    weights: Weights,
    model: schema.Model,
    variables: Mapping[str, Any],
    wanted: Collection[str],
    scope: Scope,
) -> tuple[Weights, NameMap]:
    """Finds the wanted arrays by their names, or in a graph by their places if that finds more."""
    name_map = choose_name_map(weights, model, variables, wanted, scope=scope)
    count = name_map.count_found(wanted, weights.arrays)
    if count == len(wanted):
        return weights, name_map
    matched = match_weights(weights, model, wanted)
    if matched is weights:
        return weights, name_map
    matched_map = choose_name_map(matched, model, variables, wanted, scope=scope)
    better = not count or matched_map.count_found(wanted, matched.arrays) > count
    return (matched, matched_map) if better else (weights, name_map)


def _without_statistics(weights: Weights, arrays: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Returns the paths of norms that a converter folded, or that keep the values of a start."""
    held = weights.arrays
    lost = held.lost_statistics if isinstance(held, MatchedArrays) else frozenset[str]()
    norms = (path.removesuffix(_MEAN) for path in arrays if path.endswith(_MEAN))
    return tuple(
        norm
        for norm in norms
        if norm + _MEAN in lost
        or not (arrays[norm + _MEAN].any() or np.ptp(arrays.get(norm + ".var", [0.0])))
    )


def _notes_on_frozen_norms(
    shapes: Mapping[str, object],
    loaded: Collection[str],
    model: schema.Model,
    options: ImportOptions,
) -> tuple[str, ...]:
    """Notes that norms which the weights lack are frozen with the statistics of no data."""
    if not options.for_training or not getattr(model, "freeze_batch_norm", False):
        return ()
    fresh = [path for path in shapes if path.endswith(_MEAN) and path not in loaded]
    return (
        f"model.freeze_batch_norm also freezes {count_text(len(fresh), 'batch norm')} that the "
        "weights lack, with the statistics of no data: "
        f"{Setting('model.freeze_batch_norm', False)} "
        f"{Setting('model.backbone.conv.batch_norm.train', False)} freezes the backbone's alone",
    ) * bool(fresh)


def _matching(wanted: list[str], name_map: NameMap, patterns: tuple[str, ...]) -> set[str]:
    """Returns the wanted paths that a pattern is found in, or in their names."""
    matched: set[str] = set()
    named = {path: name_map.name(path) for path in wanted}
    for pattern, matches in found_in(patterns, named, "train.fine_tune.skip"):
        if not matches:
            names = sorted(map(name_map.name, wanted))
            problem = f"the pattern {pattern!r} matches nothing that is wanted"
            where = "train.fine_tune.skip"
            raise UserError(problem, where=where, fix=f"names look like {', '.join(names[:3])}")
        matched |= matches
    return matched


def _refuse_parts(unnamed: Collection[str], weights: Weights, options: ImportOptions) -> None:
    problem = f"no names in {_KINDS[weights.library]} are known for {', '.join(unnamed)}"
    fix = "give weights that stillbox saved"
    if options.for_training:
        patterns = ", ".join(rf"'^{part.split()[0]}\.'" for part in unnamed)
        fix += f", or leave the part out: {Setting('train.fine_tune.skip', f'[{patterns}]')}"
    raise UserError(problem, where=weights.path, fix=fix)


def _found_by_scope(
    model: schema.Model, variables: Mapping[str, Any], weights: Weights
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for scope in get_args(Scope):
        options = ImportOptions(scope=scope)
        wanted = [path for path in variables if options.wants(path, model)]
        name_map = choose_name_map(weights, model, variables, wanted, scope=scope)
        counts[scope] = name_map.count_found(wanted, weights.arrays)
    return counts
