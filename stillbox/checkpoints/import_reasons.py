"""Why an array of a file was not asked for, and what a person should know of those that were."""

import re
from collections.abc import Iterable, Mapping

from stillbox.checkpoints.dialects import Dialect
from stillbox.checkpoints.import_report import Mismatch
from stillbox.experiment import schema

EMA = "/ExponentialMovingAverage"
"""What TF1 adds to a variable's name for its moving average."""
# What TF1's optimizers keep beside a variable, and beside the graph.
_SLOTS = r"(Momentum|RMSProp|Adam|Adagrad|Adadelta|Ftrl)(_\d+)?"
_COUNTERS = r"global_step|beta[12]_power|learning_rate"


def explain_rest(
    held: Iterable[str], loaded: Mapping[str, str], paths: Iterable[str], dialect: Dialect
) -> dict[str, str]:
    """Says for every array of a file that was not asked for why it was not.

    Args:
        held: all names in the file.
        loaded: name in the file by path, of what was taken.
        paths: of all the detector's arrays.
        dialect: what the file was read in.
    """
    used = set(loaded.values())
    known = {name: path for path, name in dialect.names.items()} | {path: path for path in paths}
    return {
        name: _reason(name, known, used, dialect.table.unwanted)
        for name in held
        if name not in used
    }


def _reason(
    name: str, paths: Mapping[str, str], used: set[str], unwanted: Mapping[str, str]
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
    reasons = (reason for pattern, reason in unwanted.items() if re.fullmatch(pattern, name))
    return next(reasons, "no such parameter in this model")


def backbone_notes(
    dialect: Dialect,
    loaded: Mapping[str, str],
    mismatched: Iterable[Mismatch],
    model: schema.Model,
) -> tuple[str, ...]:
    """Says where the backbone is another one than that which its weights are from."""
    if not any(dialect.names.get(path) == name for path, name in loaded.items()):
        return ()
    misfits = sum(mismatch.path.startswith("backbone.") for mismatch in mismatched)
    misfit = f"{misfits} arrays of the backbone have another shape: is it the same architecture?"
    return (misfit,) * bool(misfits) + tuple(
        f"{dialect.table.spelling.library}'s weights of this backbone want {field}: {value}, and "
        f"it is {getattr(model.backbone, field)}: --set model.backbone.{field}={value}"
        for field, value in dialect.table.trained_with.items()
        if getattr(model.backbone, field) != value
    )


def head_notes(mismatched: Iterable[Mismatch], model: schema.Model) -> tuple[str, ...]:
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
