"""Whether a run fits into a machine, and the largest value of a field that does."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from stillbox.checking.advice.advice import Advice
from stillbox.checking.memory.estimate import Needs, estimate
from stillbox.checking.memory.machine import LARGEST, Machine, processor
from stillbox.checking.memory.traced import Sizes, many_classes, sizes_of
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.schema import Experiment
from stillbox.printing import size_text


@dataclass(frozen=True)
class Shortage:
    """A run that needs more memory than there is."""

    field: str
    """Dotted path of the field to lower."""
    what: str
    fix: str
    certain: bool
    """No compilation of the program would fit; otherwise it may not."""


def refuse_shortage(
    experiment: Experiment, machine: Machine, origins: Mapping[str, str]
) -> Shortage | None:
    """Refuses a run that cannot fit; returns one that may not.

    Args:
        experiment: of the run.
        machine: that it is for.
        origins: source position by dotted field, for the message.

    Raises:
        UserError: no compilation of the program would fit.
    """
    shortage = _shortage_if_known(experiment, machine)
    if shortage is not None and shortage.certain:
        place = origins.get(shortage.field, shortage.field)
        raise UserError(shortage.what, where=place, fix=shortage.fix)
    return shortage


def fits_for_certain(experiment: Experiment, machine: Machine) -> bool:
    """Whether a run fits by the upper estimate.

    Raises:
        UserError: the model cannot be built.
    """
    return _fits(_needs(experiment, sizes_of(experiment.model, experiment.train), machine), machine)


def _shortage_if_known(experiment: Experiment, machine: Machine) -> Shortage | None:
    try:
        return find_shortage(experiment, machine)
    except (UserError, TypeError, ValueError):
        # A model that cannot be built, or a user's own one that cannot be traced for one image:
        # the run itself says what is wrong with it.
        return None


class _Knob(NamedTuple):
    """A number of an experiment that memory grows with."""

    path: str
    value: int
    usual: int
    least: int
    change: Callable[[Experiment, int], Experiment]


def find_shortage(experiment: Experiment, machine: Machine) -> Shortage | None:
    """Returns what does not fit, if anything does not; nothing is allocated or compiled.

    Raises:
        UserError: the model cannot be built.
    """
    sizes = sizes_of(experiment.model, experiment.train)
    needs = _needs(experiment, sizes, machine)
    certain = not _fits(needs, machine, lower=True)
    if not certain and _fits(needs, machine):
        return None
    verb = "needs" if certain else "may need"
    each = f" on each of {machine.devices:,} devices" if machine.devices > 1 else ""
    text = (
        f"the run {verb} {_describe(needs, certain=certain)}{each}; {machine.name} has "
        f"{size_text(machine.device_bytes)}"
    )
    found = [
        (knob.value / max(knob.usual, 1), knob, best)
        for knob in _knobs(experiment)
        if (best := _largest(experiment, knob, machine, sizes)) is not None
    ]
    if not found:
        return Shortage("model", text, "take a smaller model: stillbox recipes lists them", certain)
    # The number that is furthest from the usual one is at fault.
    _, knob, best = max(found, key=lambda item: item[0])
    return Shortage(knob.path, text, _fix(knob, best), certain)


def _fix(knob: _Knob, best: int) -> str:
    side = knob.path == "model.resizer"
    value = f"an input of {best} x {best}" if side else f"--set {knob.path}={best}"
    return f"{value}, the largest that is certain to fit"


def _knobs(experiment: Experiment) -> Iterator[_Knob]:
    train, data = experiment.train, experiment.data
    yield _Knob("train.batch_size", train.batch_size, 32, 1, _set("train.batch_size"))
    yield _Knob("data.train.max_boxes", data.train.max_boxes, 100, 1, _set("data.train.max_boxes"))
    yield _Knob("data.prefetch", data.prefetch, 2, 0, _set("data.prefetch"))
    yield _Knob(
        "evaluation.batch_size",
        experiment.evaluation.batch_size,
        32,
        1,
        _set("evaluation.batch_size"),
    )
    if many_classes(experiment.model):
        classes = experiment.model.num_classes
        yield _Knob("model.num_classes", classes, 90, 1, _set("model.num_classes"))
    height, width = experiment.model.network_size
    side = round(math.sqrt(height * width))
    yield _Knob("model.resizer", side, 640, 64, _with_side)


def _set(path: str) -> Callable[[Experiment, int], Experiment]:
    *parents, name = path.split(".")

    def change(experiment: Experiment, value: int) -> Experiment:
        sections = [experiment]
        for parent in parents:
            sections.append(getattr(sections[-1], parent))
        changed = replace(sections[-1], **{name: value})  # type: ignore[arg-type]
        for section, parent in zip(reversed(sections[:-1]), reversed(parents), strict=True):
            changed = replace(section, **{parent: changed})  # type: ignore[arg-type]
        return changed

    return change


def _with_side(experiment: Experiment, side: int) -> Experiment:
    square = schema.FixedShapeResizer(height=side, width=side)
    return replace(experiment, model=replace(experiment.model, resizer=square))


def _largest(experiment: Experiment, knob: _Knob, machine: Machine, sizes: Sizes) -> int | None:
    """Returns the largest value that fits for certain; None: not even the least one does."""
    steps = 64 if knob.path == "model.resizer" else 1

    def fits(value: int) -> bool:
        changed = knob.change(experiment, value)
        return _fits(_needs(changed, _scaled(sizes, experiment, changed), machine), machine)

    low, high = knob.least // steps, knob.value // steps
    if high < low or not fits(low * steps):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * steps) else (low, middle - 1)
    return low * steps


def _scaled(sizes: Sizes, before: Experiment, after: Experiment) -> Sizes:
    """Returns the sizes after a change, from traces that are there already."""
    if before.model.num_classes != after.model.num_classes:
        return sizes_of(after.model, after.train, extrapolate=True)
    old, new = (math.prod(one.model.network_size) for one in (before, after))
    return sizes.with_pixels(new / old)


def _needs(experiment: Experiment, sizes: Sizes, machine: Machine) -> Needs:
    return estimate(
        experiment,
        sizes,
        machine.platform,
        devices=machine.devices,
        processes=machine.processes,
    )


def memory_advice(experiment: Experiment) -> Iterator[Advice]:
    """Yields an error for what fits nowhere, a warning for what does not fit on this machine's CPU.

    Nothing is started: accelerators are left to the run itself.
    """
    try:
        sizes_of(experiment.model, experiment.train)
    except UserError as error:
        yield Advice("error", error.where or "model", error.what, error.fix or "")
        return
    except (TypeError, ValueError):
        # As for `_shortage_if_known`.
        return
    machine = processor()
    here = _shortage_if_known(experiment, machine) if machine else None
    anywhere = _shortage_if_known(experiment, LARGEST)
    if anywhere is not None and anywhere.certain:
        shortage = here or anywhere
        yield Advice("error", shortage.field, shortage.what, shortage.fix)
    elif here is not None:
        refused = ": training refuses it here" if here.certain else ""
        yield Advice("warning", here.field, here.what + refused, here.fix)


def _fits(needs: Needs, machine: Machine, *, lower: bool = False) -> bool:
    side = "low" if lower else "high"
    device, host = getattr(needs.device, side), getattr(needs.host, side)
    if machine.platform == "cpu":
        return bool(device + host <= machine.host_bytes)
    return bool(device <= machine.device_bytes and host <= machine.host_bytes)


def _describe(needs: Needs, *, certain: bool) -> str:
    """Returns a phrase with the total and its largest parts."""
    side = "low" if certain else "high"
    parts = {name: getattr(getattr(needs, name), side) for name in vars(needs)}
    total = getattr((needs.device + needs.host), side)
    shown = sorted(parts.items(), key=lambda item: -item[1])[:3]
    listed = ", ".join(f"{_NAMES[name]} {size_text(value)}" for name, value in shown if value)
    return f"{'at least' if certain else 'up to'} {size_text(total)} of memory ({listed})"


_NAMES = {
    "parameters": "parameters and gradient",
    "optimizer": "optimizer",
    "activations": "activations",
    "batch": "batches on the device",
    "matching": "overlaps of anchors and boxes",
    "evaluation": "evaluation",
    "host": "batches on the host",
}
