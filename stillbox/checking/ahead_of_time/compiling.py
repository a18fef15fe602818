"""Compiles the training, evaluation and prediction steps of an experiment for a target.

These are the programs that the commands run (`training/program.py`, `evaluation/program.py`).
Nothing is computed, so the target need not be present. The verdict on a step has its memory by
use and its costs, or the reason why it was not compiled and the fields to change.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

import jax

from stillbox.checking.ahead_of_time.costs import collective_bytes, count_flops, memory_traffic
from stillbox.checking.ahead_of_time.hlo import Message, Program, read_program
from stillbox.checking.ahead_of_time.targets import Target
from stillbox.devices.compiling import Compilation
from stillbox.devices.mesh import build_mesh
from stillbox.devices.roofline import Roofline, estimate
from stillbox.errors import UserError
from stillbox.evaluation.program import predict_program, score_program, takes_images_one_by_one
from stillbox.experiment import schema
from stillbox.experiment.schema import Experiment
from stillbox.findings import Finding
from stillbox.printing import count_text, sides_text, size_text
from stillbox.references import Parameter
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program

# Names of the arguments of training, evaluation and prediction; any other is a part of the batch.
_KINDS = (
    (re.compile(r"^(state\.)?(params|stats)\b"), "parameters"),
    (re.compile(r"^state\.optimizer\b"), "optimizer"),
    (re.compile(r"^state\.ema\b"), "average"),
    (re.compile(r"^state\."), "parameters"),
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on each device, with the padding of tiles."""

    parameters: int
    """Parameters and moving statistics."""
    optimizer: int
    """Accumulators of the optimiser."""
    average: int
    """Moving average of the parameters."""
    batch: int
    """Images, boxes and the rest of a batch."""
    results: int
    """Results that do not reuse an argument's memory."""
    temporaries: int
    """Activations kept for the gradient, and everything else within a step."""
    code: int
    """The program itself."""
    usable: int
    """Memory that the compiler grants a program."""

    @property
    def total(self) -> int:
        """The sum."""
        arguments = self.parameters + self.optimizer + self.average + self.batch
        return arguments + self.results + self.temporaries + self.code

    @property
    def left(self) -> int:
        """Bytes left; negative if the program does not fit."""
        return self.usable - self.total

    def to_dict(self) -> dict[str, int]:
        """Returns plain values, for JSON."""
        return {**asdict(self), "total": self.total, "left": self.left}


class MemoryAnalysis(Protocol):
    """What `compiled.memory_analysis()` returns, in bytes on each device."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int


def measure_memory(analysis: MemoryAnalysis, program: Program, usable: float) -> Memory:
    """Returns the memory of a program, with its `compiled.memory_analysis()`."""
    arguments: Counter[str] = Counter()
    for parameter in program.parameters():
        kind = next((kind for pattern, kind in _KINDS if pattern.match(parameter.op_name)), "batch")
        arguments[kind] += sum(array.nbytes for array in parameter.arrays)
    # What no parameter explains is padding of the batch.
    arguments["batch"] += max(analysis.argument_size_in_bytes - arguments.total(), 0)
    return Memory(
        **{kind: arguments[kind] for kind in ("parameters", "optimizer", "average", "batch")},
        results=max(analysis.output_size_in_bytes - analysis.alias_size_in_bytes, 0),
        temporaries=analysis.temp_size_in_bytes,
        code=analysis.generated_code_size_in_bytes,
        usable=int(usable),
    )


StepName = Literal["train", "evaluate", "predict"]
STEPS: tuple[StepName, ...] = ("train", "evaluate", "predict")


@dataclass(frozen=True, kw_only=True)
class StepCheck:
    """The compiler's verdict on one program."""

    step: StepName
    images: int
    """Images of a step, over all devices."""
    devices: int
    failure: Finding | None = None
    """Why it is not compiled or does not fit, with the fields to change."""
    needed: int = 0
    """Bytes that a device would need, if that is the reason and known."""
    seconds: float = 0.0
    """Wall clock of tracing and compiling."""
    memory: Memory | None = None
    flops: float = 0.0
    """Operations of a step on each device; a loop of unknown length counts as one round."""
    traffic: int = 0
    """Bytes between each device and its memory, roughly."""
    collectives: dict[str, int] = field(default_factory=dict)
    """Bytes that each kind of collective reads on a device."""
    roofline: Roofline | None = None
    """Estimate for a training step on a chip with published figures."""

    @property
    def fits(self) -> bool:
        """Whether it is compiled and fits."""
        return self.failure is None

    @property
    def flops_per_image(self) -> float:
        """Operations for one image."""
        return self.flops * self.devices / self.images

    @property
    def images_per_second(self) -> float | None:
        """The most that the published figures allow."""
        return self.images / self.roofline.seconds if self.roofline else None

    def to_dict(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        return {
            "step": self.step,
            "fits": self.fits,
            "refused": self.failure.what if self.failure else "",
            "fix": self.failure.fix if self.failure else "",
            "images": self.images,
            "devices": self.devices,
            "compile_seconds": round(self.seconds, 1),
            "bytes_needed_per_device": self.needed,
            "memory_per_device": self.memory.to_dict() if self.memory else None,
            "flops_per_image": self.flops_per_image,
            "flops_per_step": self.flops * self.devices,
            "memory_traffic_per_device": self.traffic,
            "collective_bytes_per_device": self.collectives,
            "roofline_estimate": self.roofline.to_dict() if self.roofline else None,
            "images_per_second_at_most": self.images_per_second,
        }


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
# A device holds few images of this size or larger, and an image may be split.
_LARGE_IMAGE = 512 * 512
# Accumulators that take more than this part of a device's memory are worth sharding.
_HEAVY = 0.05


# The field that grows with the images of a step.
_PATHS: dict[StepName, str] = {
    "train": "train.batch_size",
    "evaluate": "evaluation.batch_size",
    "predict": "model.resizer",
}


def explain_failure(
    message: str, step: StepName, experiment: Experiment, *, state_bytes: int, usable: float
) -> tuple[Finding, int]:
    """Returns what a compiler's error message means, and the bytes that a device would need.

    The bytes are 0 if they are not the reason or not known.

    Args:
        state_bytes: bytes of optimizer and moving average on a device.
        usable: bytes of a device that are available to a program.
    """
    first, *_ = message.splitlines() or [""]
    space = re.search(r"memory space (\w+)", message)
    problem = ""
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        problem = f"the compiler refuses it: {first}"
    elif space and space[1] != "hbm":
        problem = f"the compiler finds no room in {space[1]}, the memory on the chip: {first}"
    if problem:
        fix = "report it with this command: this is a bug in stillbox"
        return Finding("error", "", problem, fix), 0
    needed, largest = _needs(message)
    heavy_state = state_bytes > _HEAVY * usable
    return _out_of_memory(needed, step, experiment, usable, heavy_state, largest), needed


def _out_of_memory(
    needed: int,
    step: StepName,
    experiment: Experiment,
    usable: float,
    heavy_state: bool,
    largest: str = "",
) -> Finding:
    """Returns the finding of a program that needs more memory than there is.

    Args:
        needed: bytes on a device; 0: not known.
        heavy_state: optimizer and moving average take a large part of the memory.
        largest: a phrase about the largest array.
    """
    size = size_text(needed) if needed else "more memory than there is"
    problem = (
        f"it needs {size} on each device, which has {size_text(usable)} for a program{largest}"
    )
    fix = "; or ".join(_remedies(step, experiment, heavy_state=heavy_state))
    return Finding("error", _PATHS[step], problem, fix)


def _needs(message: str) -> tuple[int, str]:
    """Returns the bytes that are needed, 0 if not known, and a phrase about the largest array."""
    if array_match := _ONE_ARRAY.search(message):
        return int(array_match["size"]), f" and not room for {array_match['shape']} alone"
    used, array = _USED.search(message), _LARGEST.search(message)
    needed = int(float(used["used"]) * _UNITS[used["unit"]]) if used else 0
    return needed, f"; its largest array is {array['shape']}, {array['size']}iB" if array else ""


def _remedies(step: StepName, experiment: Experiment, *, heavy_state: bool) -> Iterator[str]:
    train, evaluation = experiment.train, experiment.evaluation
    height, width = experiment.model.resizer.input_size
    if step == "train":
        yield (
            f"lower train.batch_size ({train.batch_size}); {Parameter('find_batch')} looks for "
            "the largest"
        )
        if train.micro_batch_size > 1:
            yield f"raise train.accumulation_steps ({train.accumulation_steps})"
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
    yield f"make the images of model.resizer smaller ({sides_text((height, width))})"


Say = Callable[[str], None]


def check_step(
    experiment: Experiment, target: Target, step: StepName, say: Say = lambda line: None
) -> StepCheck:
    """Compiles one step of an experiment for a target; `say` prints the progress.

    A step that cannot be compiled is a verdict, not an error.
    """
    began = time.monotonic()
    train, evaluation = experiment.train.batch_size, experiment.evaluation.batch_size
    images = {"train": train, "evaluate": evaluation, "predict": 1}[step]
    devices = 1 if step == "predict" else len(target.devices)
    check = StepCheck(step=step, images=images, devices=devices)
    try:
        lowered, state_bytes = _lower(experiment, target, check)
    except UserError as error:
        failure = Finding("error", error.where or "", error.what, error.fix or "")
        return replace(check, failure=failure)
    say(
        f"{step}: compiling {count_text(images, 'image')} a step for "
        f"{count_text(check.devices, target.slot)} of {target.name} ..."
    )
    usable = target.usable_bytes
    try:
        compiled = Compilation(lowered, step).result()
    except jax.errors.JaxRuntimeError as error:
        failure, needed = explain_failure(
            str(error), step, experiment, state_bytes=state_bytes, usable=usable
        )
        check = replace(check, failure=failure, needed=needed)
    else:
        check, memory = _measure(compiled, check, target, _rounds(experiment, check, target))
        if memory.left < 0:
            heavy_state = state_bytes > _HEAVY * memory.usable
            failure = _out_of_memory(memory.total, step, experiment, memory.usable, heavy_state)
            check = replace(check, failure=failure, needed=memory.total)
    check = replace(check, seconds=time.monotonic() - began)
    say(f"{step}: {'compiled' if check.fits else 'refused'} after {check.seconds:.0f} s")
    return check


def _lower(
    experiment: Experiment, target: Target, check: StepCheck
) -> tuple[jax.stages.Lowered, int]:
    """Returns the traced program, and the bytes of optimizer and moving average on a device."""
    if check.step == "predict":
        # As in `stillbox predict`: one image at a time on one device.
        mesh = build_mesh(1, schema.Devices(), target.devices[:1])
        return predict_program(experiment, mesh).lower(), 0
    if check.step == "evaluate":
        where = "evaluation.batch_size"
        mesh = build_mesh(check.images, experiment.devices, target.devices, where=where)
        return score_program(experiment, mesh).lower(), 0
    parts = experiment.train.accumulation_steps
    mesh = build_mesh(check.images, experiment.devices, target.devices, parts=parts)
    program = train_program(plan_training(experiment.at_largest_input, mesh))
    state = jax.tree.leaves((program.state.optimizer, program.state.ema))
    nbytes = sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in state
    )
    return program.lower(), nbytes


def _rounds(experiment: Experiment, check: StepCheck, target: Target) -> int:
    """Returns how many times a step repeats the loop that makes up most of it."""
    if check.step == "train":
        return experiment.train.accumulation_steps
    one_by_one = takes_images_one_by_one(target.devices[: check.devices])
    return check.images if check.step == "evaluate" and one_by_one else 1


def _measure(
    compiled: jax.stages.Compiled, check: StepCheck, target: Target, rounds: int
) -> tuple[StepCheck, Memory]:
    """Returns the check with the costs and the memory of the compiled program."""
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    program = read_program(Message(module.as_serialized_hlo_module_proto()))
    analysis = compiled.memory_analysis()
    assert analysis is not None
    memory = measure_memory(analysis, program, target.usable_bytes)
    # XLA counts one round of a loop.
    counted = rounds * float((compiled.cost_analysis() or {}).get("flops", 0.0))
    flops = counted or count_flops(program)
    traffic, collectives = memory_traffic(program), collective_bytes(program)
    roofline = None
    # Evaluation is bound by its loops, which a roofline ignores.
    if target.chip is not None and check.step == "train":
        moved = sum(collectives.values())
        roofline = estimate(
            target.chip, flops=flops, traffic=traffic, collective=moved, devices=check.devices
        )
    check = replace(check, memory=memory, flops=flops, traffic=traffic)
    return replace(check, collectives=collectives, roofline=roofline), memory
