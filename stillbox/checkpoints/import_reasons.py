"""Reasons why arrays of a file were not loaded, and notes about those that were."""

import re
from collections.abc import Collection, Iterable, Mapping

from stillbox.checkpoints.import_report import Mismatch
from stillbox.checkpoints.name_map import EMA, NameMap
from stillbox.experiment import schema

# TF1's optimizers keep these beside a variable, and these beside the graph.
_SLOTS = r"(Momentum|RMSProp|Adam|Adagrad|Adadelta|Ftrl)(_\d+)?"
_COUNTERS = r"global_step|beta[12]_power|learning_rate"


def explain_rest(
    held: Iterable[str],
    used: Collection[str],
    paths: Iterable[str],
    left_out: Collection[str],
    name_map: NameMap,
) -> dict[str, str]:
    """Returns the reason by name, of every array that was not read.

    Args:
        held: all names in the file.
        used: the names that were read.
        paths: of all the detector's arrays.
        left_out: paths that a pattern of `train.fine_tune.skip` matches.
        name_map: of the file.
    """
    known = {name: path for path, name in name_map.names.items()} | {path: path for path in paths}
    ignored = name_map.table.ignored
    return {
        name: "train.fine_tune.skip matches it"
        if known.get(name) in left_out
        else _reason(name, known, used, ignored)
        for name in held
        if name not in used
    }


def _reason(
    name: str, paths: Mapping[str, str], used: Collection[str], ignored: Mapping[str, str]
) -> str:
    *_, last = name.split("/")
    if name + EMA in used:
        return "its moving average was taken"
    if name.endswith(EMA):
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
    reasons = (reason for pattern, reason in ignored.items() if re.fullmatch(pattern, name))
    return next(reasons, "no such parameter in this model")


def backbone_notes(
    name_map: NameMap,
    loaded: Mapping[str, str],
    mismatched: Iterable[Mismatch],
    model: schema.Model,
) -> tuple[str, ...]:
    """Notes differences between the backbone and the one that the weights were trained in."""
    if not isinstance(model, schema.OneStage):
        return ()
    if not any(name_map.names.get(path) == name for path, name in loaded.items()):
        return ()
    misfits = sum(mismatch.path.startswith("backbone.") for mismatch in mismatched)
    misfit = f"{misfits} arrays of the backbone have another shape: is it the same architecture?"
    return (misfit,) * bool(misfits) + tuple(
        f"{name_map.table.convention.library}'s weights of this backbone want {field}: {value}, "
        f"and it is {getattr(model.backbone, field)}: --set model.backbone.{field}={value}"
        for field, value in name_map.table.expected.items()
        if getattr(model.backbone, field) != value
    )


def head_notes(mismatched: Iterable[Mismatch], model: schema.Model) -> tuple[str, ...]:
    """Notes class heads that do not fit because the file has other classes."""
    if not isinstance(model, schema.OneStage):
        return ()
    logits = model.num_classes + model.background_class
    for mismatch in mismatched:
        if mismatch.path.endswith(".class_.bias"):
            anchors = mismatch.wanted[0] // logits
            return (
                f"the class head in the file has {mismatch.found[0] / anchors:g} logits an anchor, "
                f"this model's has {logits}: heads of another shape keep their fresh weights",
            )
    return ()
