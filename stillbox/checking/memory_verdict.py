"""Whether a run fits into the memory of a machine, and the largest value of a field that does."""

import math
import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

from stillbox.checking.memory_estimate import (
    MemoryEstimate,
    Platform,
    Sizes,
    estimate,
    many_classes,
    sizes_of,
)
from stillbox.devices.process import processes_here
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import apply_changes
from stillbox.findings import Finding, Findings, Origins, Severity
from stillbox.machine_memory import total_memory
from stillbox.printing import size_text
from stillbox.references import Setting

if TYPE_CHECKING:
    from stillbox.scaling.ray_scale import Workers

_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/vfio")


@dataclass(frozen=True)
class Machine:
    """The devices of a run and their memory."""

    name: str
    platform: Platform
    device_bytes: float
    """Memory of each device. Devices of a CPU share the memory of their process."""
    host_bytes: float
    devices: int = 1
    """Devices that share a batch."""
    processes: int = 1
    """Processes that share the preparation of a batch."""

    @property
    def memories(self) -> int:
        """Number of memories that hold a batch; devices of a CPU share one."""
        return self.processes if self.platform == "cpu" else self.devices


# Above the largest devices and slices of `ahead_of_time`.
LARGEST = Machine("the largest known one", "tpu", 192 * 2**30, 2**45, 1024, 256)


def this_machine() -> Machine:
    """Returns the devices that a run would use; it starts them."""
    device, sharing = jax.local_devices()[0], processes_here()
    host = total_memory() / sharing
    limit = (device.memory_stats() or {}).get("bytes_limit")
    counts = jax.device_count(), jax.process_count()
    if device.platform == "cpu" or limit is None:
        name = "this machine" if sharing == 1 else f"1/{sharing} of this machine"
        return Machine(name, "cpu", host, host, *counts)
    platform: Platform = "tpu" if device.platform == "tpu" else "gpu"
    return Machine(device.device_kind, platform, float(limit), host, *counts)


def machine_for(workers: "Workers | None") -> Machine:
    """Returns the devices of a run: the least of its slices on Ray, or the devices of this machine.

    The devices of this machine are started, unless it is a part of a slice: then they belong to
    the worker.
    """
    if workers is None or workers.slice is None:
        return this_machine()
    memory, count = workers.slice.chip.usable_bytes, workers.least
    host = float(total_memory())
    return Machine(workers.slice.name, "tpu", memory, host, count * workers.devices, count)


def processor() -> Machine | None:
    """Returns this machine if it has no accelerator; starts no device."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms != "cpu" and any(Path(file).exists() for file in _FILES):
        return None
    host = float(total_memory())
    return Machine("this machine", "cpu", host, host)


def refuse_shortage(experiment: Experiment, machine: Machine, origins: Origins) -> Finding | None:
    """Refuses a run that cannot fit on a machine; returns a warning about one that may not.

    Raises:
        UserError: no compilation of the program would fit.
    """
    shortage = _shortage_if_known(experiment, machine)
    if shortage is not None and shortage.severity == "error":
        raise UserError(shortage.what, where=shortage.where(origins), fix=shortage.fix)
    return shortage


def fits_for_certain(experiment: Experiment, machine: Machine) -> bool:
    """Whether a run fits by the upper estimate, or its model cannot be traced."""
    largest = experiment.at_largest_input
    try:
        sizes = sizes_of(largest.model, largest.train)
    except (UserError, TypeError, ValueError):
        # As for `_shortage_if_known`.
        return True
    return _fits(_needs(largest, sizes, machine), machine)


def _shortage_if_known(experiment: Experiment, machine: Machine) -> Finding | None:
    try:
        return find_shortage(experiment, machine)
    except (UserError, TypeError, ValueError):
        # The model cannot be built, or a user's own model cannot be traced for one image. The run
        # itself reports that.
        return None


class _Tunable(NamedTuple):
    """A number of an experiment that memory grows with."""

    path: str
    value: int
    usual: int
    least: int
    step: int = 1
    """Difference of two values that a run can take; divides `least`."""


def find_shortage(experiment: Experiment, machine: Machine) -> Finding | None:
    """Returns the field to lower if a run does not fit, without allocating or compiling anything.

    It is an error if no compilation of the program would fit, a warning if some may not.

    Raises:
        UserError: the model cannot be built.
    """
    several, experiment = bool(experiment.train.input_sizes), experiment.at_largest_input
    sizes = sizes_of(experiment.model, experiment.train)
    needs = _needs(experiment, sizes, machine)
    certain = not _fits(needs, machine, lower=True)
    if not certain and _fits(needs, machine):
        return None
    verb = "needs" if certain else "may need"
    kind = "processes" if machine.platform == "cpu" else "devices"
    each = f" for each of {machine.memories:,} {kind}" if machine.memories > 1 else ""
    text = (
        f"the run {verb} {_describe(needs, certain=certain)}{each}; {machine.name} has "
        f"{size_text(machine.device_bytes)}"
    )
    limits = [
        (tunable.value / max(tunable.usual, 1), tunable, best)
        for tunable in _tunables(experiment, machine)
        if (best := _largest(experiment, tunable, machine, sizes)) is not None
    ]
    severity: Severity = "error" if certain else "warning"
    if not limits:
        return Finding(severity, "model", text, "take a smaller model: stillbox recipes lists them")
    # The number that exceeds its usual value most is probably the mistake.
    _, tunable, best = max(limits, key=lambda item: item[0])
    path = tunable.path
    value = f"an input of {best} x {best}" if path == _SIDE else f"{Setting(path, best)}"
    fix = f"{value}, the largest that is certain to fit"
    parts = _fewest_parts(experiment, machine, sizes) if path == _BATCH else None
    if parts is not None:
        fix += f"; or {Setting(_PARTS, parts)}, which takes this batch in parts"
    where = "train.input_sizes" if several and path == _SIDE else path
    return Finding(severity, where, text, fix)


_SIDE, _BATCH, _PARTS = "model.resizer", "train.batch_size", "train.accumulation_steps"
_MOST_PARTS = 1024


def _tunables(experiment: Experiment, machine: Machine) -> Iterator[_Tunable]:
    train, data, evaluation = experiment.train, experiment.data, experiment.evaluation
    images = train.accumulation_steps * _shares(experiment, machine)
    yield _Tunable(_BATCH, train.batch_size, 32, images, images)
    yield _Tunable("data.train.max_boxes", data.train.max_boxes, 100, 1)
    yield _Tunable("data.prefetch", data.prefetch, 2, 0)
    rows = _rows(experiment, machine)
    yield _Tunable("evaluation.batch_size", evaluation.batch_size, 32, rows, rows)
    if many_classes(experiment.model):
        yield _Tunable("model.num_classes", experiment.model.num_classes, 90, 1)
    yield _Tunable(_SIDE, round(math.sqrt(math.prod(experiment.model.network_size))), 640, 64, 64)


def _shares(experiment: Experiment, machine: Machine) -> int:
    """Returns the number of equal parts that devices and replicas divide a micro-batch into."""
    return math.lcm(_rows(experiment, machine), max(experiment.devices.replicas, 1))


def _rows(experiment: Experiment, machine: Machine) -> int:
    """Returns the number of devices, or groups of them, that divide a batch."""
    return max(machine.devices // experiment.devices.spatial_partitions, 1)


def _changed(experiment: Experiment, path: str, value: int) -> Experiment:
    if path == _SIDE:
        square = schema.FixedShapeResizer(height=value, width=value)
        return replace(experiment, model=replace(experiment.model, resizer=square))
    return apply_changes(experiment, {path: value})


def _largest(
    experiment: Experiment, tunable: _Tunable, machine: Machine, sizes: Sizes
) -> int | None:
    """Returns the largest value that is certain to fit; None: even the smallest may not."""
    step = tunable.step

    def fits(value: int) -> bool:
        changed = _changed(experiment, tunable.path, value)
        return _fits(_needs(changed, _scaled(sizes, experiment, changed), machine), machine)

    low, high = tunable.least // step, tunable.value // step
    if high < low or not fits(low * step):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle - 1)
    return low * step


def _fewest_parts(experiment: Experiment, machine: Machine, sizes: Sizes) -> int | None:
    """Returns the fewest parts of the batch that are certain to fit; None: there are none."""
    share, rest = divmod(experiment.train.batch_size, _shares(experiment, machine))
    numbers = [] if rest else [n for n in range(2, min(share, _MOST_PARTS) + 1) if share % n == 0]

    def fits(number: int) -> bool:
        changed = _changed(experiment, _PARTS, number)
        return _fits(_needs(changed, sizes, machine), machine)

    # The more parts, the less memory.
    index = bisect_left(numbers, True, key=fits)
    return numbers[index] if index < len(numbers) else None


def _scaled(sizes: Sizes, before: Experiment, after: Experiment) -> Sizes:
    """Returns the sizes after a change without tracing again."""
    if before.model.num_classes != after.model.num_classes:
        return sizes_of(after.model, after.train, extrapolate=True)
    old, new = (math.prod(sized.model.network_size) for sized in (before, after))
    return sizes.with_pixels(new / old)


def _needs(experiment: Experiment, sizes: Sizes, machine: Machine) -> MemoryEstimate:
    devices, processes = machine.memories, machine.processes
    return estimate(experiment, sizes, machine.platform, devices=devices, processes=processes)


def memory_advice(experiment: Experiment, target: Machine | None = None) -> Findings:
    """Yields an error for a run that fits nowhere, a warning if it does not fit on the target.

    Without a target that is this machine if it has no accelerator. No device is started; a run on
    an accelerator is checked when it starts, and on a target by its compiler.
    """
    largest = experiment.at_largest_input
    try:
        sizes_of(largest.model, largest.train)
    except UserError as error:
        yield Finding("error", error.where or "model", error.what, error.fix or "")
        return
    except (TypeError, ValueError):
        # As for `_shortage_if_known`.
        return
    machine = target or processor()
    here = _shortage_if_known(experiment, machine) if machine else None
    anywhere = _shortage_if_known(experiment, LARGEST)
    if anywhere is not None and anywhere.severity == "error":
        yield replace(here or anywhere, severity="error")
    elif here is not None:
        refused = ": training refuses it here" if here.severity == "error" and not target else ""
        yield replace(here, severity="warning", what=here.what + refused)


def _fits(needs: MemoryEstimate, machine: Machine, *, lower: bool = False) -> bool:
    side = "low" if lower else "high"
    device, host = getattr(needs.device, side), getattr(needs.host, side)
    if machine.platform == "cpu":
        return bool(device + host <= machine.host_bytes)
    return bool(device <= machine.device_bytes and host <= machine.host_bytes)


def _describe(needs: MemoryEstimate, *, certain: bool) -> str:
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
