"""Reasons why a program was not compiled, with the fields that mend it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stillbox.checking.ahead_of_time.steps import StepName
from stillbox.experiment.schema import Experiment
from stillbox.printing import size_text

_USED = re.compile(
    r"Used (?P<used>[\d.]+)(?P<unit>[KMGT]?) of (?P<most>[\d.]+)(?P<most_unit>[KMGT]?)"
)
_LARGEST = re.compile(
    r"  1\. Size: (?P<size>[\d.]+[KMGT])\n.*?Shape: (?P<shape>\w+\[[\d,]*\])", re.DOTALL
)
# The message where a single array is too large already.
_ONE_ARRAY = re.compile(
    r"Allocation \(size=(?P<size>\d+)\) would exceed memory.*?shape = '(?P<shape>\w+\[[\d,]*\])"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# From this size on a device holds few images, and an image may be split.
_LARGE_IMAGE = 512 * 512
# The part of a device's memory from which on the accumulators are worth sharding.
_HEAVY = 0.05


@dataclass(frozen=True)
class Failure:
    """A program that was not compiled."""

    what: str
    fix: str
    needed: int = 0
    """Bytes that a device would need, if that is the reason and known."""


def explain_failure(
    message: str, step: StepName, experiment: Experiment, *, state_bytes: int, usable: float
) -> Failure:
    """Returns the reason of a compiler's error message, with the fields to change.

    Args:
        state_bytes: bytes of optimizer and moving average on a device.
        usable: bytes that a program may take on a device.
    """
    first, *_ = message.splitlines() or [""]
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        return Failure(
            f"the compiler refuses it: {first}", "report it with this command: the fault is ours"
        )
    space = re.search(r"memory space (\w+)", message)
    if space and space[1] != "hbm":
        return Failure(
            f"the compiler finds no room in {space[1]}, the memory on the chip: {first}",
            "report it with this command: the fault is ours",
        )
    return out_of_memory(
        _bytes_used(message),
        step,
        experiment,
        state_bytes=state_bytes,
        usable=usable,
        largest=_largest_array(message),
    )


def out_of_memory(
    needed: int,
    step: StepName,
    experiment: Experiment,
    *,
    state_bytes: int,
    usable: float,
    largest: str = "",
) -> Failure:
    """Returns the failure of a program that needs more memory than there is; see `explain_failure`.

    Args:
        needed: bytes on a device; 0: not known.
        largest: a phrase about the largest array.
    """
    size = size_text(needed) if needed else "more memory than there is"
    return Failure(
        f"it needs {size} on each device, which has {size_text(usable)} for a program{largest}",
        "; or ".join(_remedies(step, experiment, heavy_state=state_bytes > _HEAVY * usable)),
        needed,
    )


def _bytes_used(message: str) -> int:
    if one := _ONE_ARRAY.search(message):
        return int(one["size"])
    found = _USED.search(message)
    return int(float(found["used"]) * _UNITS[found["unit"]]) if found else 0


def _largest_array(message: str) -> str:
    """Returns a phrase about the largest array, if the compiler names it."""
    if one := _ONE_ARRAY.search(message):
        return f" and not room for {one['shape']} alone"
    found = _LARGEST.search(message)
    return f"; its largest array is {found['shape']}, {found['size']}iB" if found else ""


def _remedies(step: StepName, experiment: Experiment, *, heavy_state: bool) -> Iterator[str]:
    train, evaluation = experiment.train, experiment.evaluation
    height, width = experiment.model.resizer.input_size
    if step == "train":
        yield f"lower train.batch_size ({train.batch_size}); --find-batch looks for the largest"
        if train.precision == "float32":
            yield "set train.precision=bfloat16, which halves the activations"
        if train.rematerialization == "none":
            yield "set train.rematerialization=blocks, which computes activations twice"
        if heavy_state and experiment.devices.shard == "nothing":
            yield "set devices.shard=optimizer"
    elif step == "evaluate":
        yield f"lower evaluation.batch_size ({evaluation.batch_size})"
    if step != "train" and evaluation.precision == "float32":
        yield "set evaluation.precision=bfloat16"
    if step != "predict" and height * width >= _LARGE_IMAGE:
        yield (
            f"raise devices.spatial_partitions ({experiment.devices.spatial_partitions}): more "
            "devices share an image"
        )
    yield f"make the images of model.resizer smaller ({height} x {width})"
