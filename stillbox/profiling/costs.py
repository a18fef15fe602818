"""The kinds of work of a program's operations, and the costs of a compiled program.

Operations and traffic are counted in the program. The time is that of the roofline model (Williams,
Waterman and Patterson, 2009) with published figures of the chip, and with a third roof for the
network; nothing is measured.
"""

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import NamedTuple

from stillbox.devices.chips import Figures
from stillbox.profiling.hlo import Instruction, Program


class Kind(StrEnum):
    """The kinds of work."""

    CONVOLUTIONS = "convolutions"
    PRODUCTS = "matrix products"
    REDUCTIONS = "reductions"
    ELEMENTWISE = "norms and other elementwise"
    COPIES = "copies and transposes"
    TARGETS = "matching and targets"
    LOSSES = "losses and mining"
    OPTIMIZER = "penalty, update, checks"
    DETECTIONS = "decoding and NMS"
    COLLECTIVES = "collectives"
    INFEED = "transfers from and to the host"
    OTHER = "other programs"


BACKGROUND = (Kind.COLLECTIVES, Kind.INFEED)
"""Kinds that should run beside the others, and cost time only where nothing else runs."""

_COLLECTIVES = re.compile(
    r"(all-(reduce|gather|to-all)|reduce-scatter|collective-(permute|broadcast)|ragged-all-to-all)"
)
# Opcodes that only move data, or take no time.
_COPIES = {"copy", "copy-start", "copy-done", "transpose", "reshape", "bitcast", "bitcast-convert"}
_COPIES |= {"concatenate", "slice", "dynamic-slice", "dynamic-update-slice", "gather", "reverse"}
_COPIES |= {"pad", "broadcast", "iota", "constant", "parameter", "tuple", "get-tuple-element"}
_REDUCTIONS = {"reduce", "reduce-window", "select-and-scatter"}
_TRANSFERS = {"infeed", "outfeed", "send", "recv", "send-done", "recv-done"}
# Kernels of a GPU's libraries by name; XLA's own are named after their instructions.
_KERNELS = (
    (re.compile(r"nccl", re.I), Kind.COLLECTIVES),
    (re.compile(r"^Memcpy(H2D|D2H)|^MemcpyHtoD|^MemcpyDtoH"), Kind.INFEED),
    (re.compile(r"^Mem(cpy|set)|transpose|nchwToNhwc|nhwcToNchw", re.I), Kind.COPIES),
    (re.compile(r"fprop|dgrad|wgrad|conv|winograd|implicit", re.I), Kind.CONVOLUTIONS),
    (re.compile(r"gemm|nvjet|cutlass|splitK", re.I), Kind.PRODUCTS),
)
_PRODUCT_CALL = re.compile(r"gemm|matmul|cublas", re.I)
_SCOPES = {
    "targets": Kind.TARGETS,
    "losses": Kind.LOSSES,
    "penalty": Kind.OPTIMIZER,
    "update": Kind.OPTIMIZER,
    "postprocess": Kind.DETECTIONS,
}
_WRAPPED = re.compile(r"^(?:transpose|jvp|vmap|checkpoint|rematted_computation)\((.*)\)$")
_PACKAGE = re.compile(r"(?:.*/site-packages/|.*/(?=stillbox/)|^|.*/)([^/].*:\d+)$")
# Parts of a path that jax itself adds.
_NOISE = re.compile(
    r"^(jit\(.*|cond|while|body|branch_\d+_fun|scan|closed_call|eval_jaxpr|custom_\w+|)$"
)


class Place(NamedTuple):
    """Where in the detector an operation comes from."""

    scopes: tuple[str, ...]
    """Names of the modules that contain it, such as `backbone`, `conv_0`, `convolution`."""
    gradient: bool
    """Whether it is part of the backward pass."""

    def __str__(self) -> str:
        return "/".join(self.scopes) + (" (gradient)" if self.gradient else "")


NOWHERE = Place((), False)


def place_of(op_name: str) -> Place:
    """Reads jax's path of an operation, `jit(step)/transpose(jvp(backbone))/conv_0/add`."""
    scopes: list[str] = []
    gradient, parts = False, _split(op_name)
    # The last part is the operation itself; a path without its start is cut off from its caller.
    for part in parts[:-1] if op_name.startswith("jit(") else ():
        gradient = gradient or part.startswith("transpose(")
        bare = part
        while found := _WRAPPED.match(bare):
            bare = found[1]
        if bare != part and scopes[:1] == [bare]:
            scopes.clear()  # a gradient inside a gradient repeats the path to it
        if not _NOISE.match(bare):
            scopes.append(bare)
    return Place(tuple(scopes), gradient)


def _split(op_name: str) -> list[str]:
    """Splits at slashes outside of brackets."""
    parts, depth = [""], 0
    for sign in op_name:
        depth += (sign == "(") - (sign == ")")
        if sign == "/" and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


class Classifier:
    """Classifies the operations of a program.

    Args:
        lowered: whether all parts of a convolution count as convolution. On a CPU stillbox makes it
            of products and sums; elsewhere a change of layout is shown as such.
    """

    def __init__(self, program: Program, *, lowered: bool) -> None:
        self._program, self._lowered = program, lowered
        self._places: dict[str, Place] = {}

    def place(self, name: str) -> Place:
        """Returns where an instruction comes from.

        Without a path of its own it is where most of the instructions inside it are, or its caller,
        or an instruction that reads it, or one that it reads.
        """
        if name not in self._places:
            self._places[name] = NOWHERE  # ends a cycle of callers
            self._places[name] = self._find(name)
        return self._places[name]

    def kind(self, name: str) -> Kind:
        """Returns the kind of an instruction, or of a library's kernel."""
        one = self._program.instructions.get(name)
        if one is None:
            return kind_of_kernel(name)
        inside = {inner.opcode for inner in self._program.inside(name)} | {one.opcode}
        scopes = self.place(name).scopes
        if any(_COLLECTIVES.match(kind) for kind in inside):
            return Kind.COLLECTIVES
        if one.opcode in _TRANSFERS:
            return Kind.INFEED
        convolves = "convolution" in inside or "conv" in one.target.lower()
        product = "dot" in inside or bool(_PRODUCT_CALL.search(one.target))
        inside_one = "convolution" in scopes
        if convolves or (inside_one and (self._lowered or product or one.opcode == "custom-call")):
            return Kind.CONVOLUTIONS
        for scope in reversed(scopes):  # the innermost decides
            if scope in _SCOPES:
                return _SCOPES[scope]
        if "channel_sum" in scopes or inside & _REDUCTIONS:
            return Kind.REDUCTIONS
        if product:
            return Kind.PRODUCTS
        parts = inside - {"fusion"}
        return Kind.COPIES if parts and parts <= _COPIES else Kind.ELEMENTWISE

    def source(self, name: str) -> str:
        """Returns file and line that an instruction comes from, the file inside its package."""
        one = self._program.instructions.get(name)
        found = _PACKAGE.search(one.source) if one else None
        return found[1] if found else ""

    def _find(self, name: str) -> Place:
        one = self._program.instructions.get(name)
        if one is None:
            return NOWHERE
        if (own := place_of(one.op_name)).scopes:
            return own
        inside = (place_of(inner.op_name) for inner in self._program.inside(name))
        if votes := Counter(place for place in inside if place.scopes):
            return votes.most_common(1)[0][0]
        if caller := self._program.callers.get(name):
            return self.place(caller)
        # The compiler added it: it is part of an instruction that reads it, or of one that it
        # reads.
        near = (*self._program.readers(name), *one.operands)
        places = (place_of(self._program.instructions[other].op_name) for other in near if other)
        return next((place for place in places if place.scopes), NOWHERE)


def kind_of_kernel(name: str) -> Kind:
    """Returns the kind of a kernel that belongs to no instruction, by its name."""
    return next((kind for pattern, kind in _KERNELS if pattern.search(name)), Kind.ELEMENTWISE)


# Which of (operand 0, operand 1, result) is the kernel, and which the output of the forward form.
_CUDNN_CONVOLUTIONS = {
    "__cudnn$convForward": (1, 2),
    "__cudnn$convForwardGraph": (1, 2),
    "__cudnn$convBiasActivationForward": (1, 2),
    "__cudnn$convBackwardInput": (1, 0),
    "__cudnn$convBackwardFilter": (2, 1),
}
_CUBLAS_PRODUCTS = ("__cublas$gemm", "__cublas$lt$matmul")
_GEMM_CONTRACTED = re.compile(r'lhs_contracting_dimensions":\[([\d,"]*)\]')
# An asynchronous one is two instructions; the first has the operands.
_BETWEEN_DEVICES = {
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
}
_BETWEEN_DEVICES |= {"ragged-all-to-all"}
# They move no data: they rename arrays, or their bodies are counted instead.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"}
_FREE |= {"call", "after-all", "partition-id", "replica-id"}
_FREE_TARGETS = {"ConcatBitcast", "AllocateBuffer"}
# They read a part of their operand that is as large as their result.
_PARTS = {"slice", "dynamic-slice", "gather"}


def count_flops(program: Program) -> float:
    """Returns the operations of all convolutions and matrix products of a run on one device.

    A multiplication and its addition count as two. XLA counts the operations of what it compiles
    itself, but not those of cuDNN and cuBLAS where there is no GPU.
    """
    return sum(times * _flops(one, program) for one, times in program.executed())


def _flops(one: Instruction, program: Program) -> float:
    if one.opcode == "fusion":
        return sum(_flops(inner, program) for inner in program.inside(one.name))
    if one.opcode == "convolution":
        return _convolution_flops(one, program, 1, 2)
    if one.target in _CUDNN_CONVOLUTIONS:
        return _convolution_flops(one, program, *_CUDNN_CONVOLUTIONS[one.target])
    if one.opcode == "dot":
        return _product_flops(one, program, one.proto.one(30).numbers(1))
    if one.target in _CUBLAS_PRODUCTS and (found := _GEMM_CONTRACTED.search(one.config)):
        return _product_flops(one, program, [int(axis) for axis in re.findall(r"\d+", found[1])])
    return 0.0


def _convolution_flops(one: Instruction, program: Program, kernel: int, output: int) -> float:
    """Every element of the output is a sum over one filter of the kernel."""
    shapes = [program.instructions[name].arrays[0].shape for name in one.operands[:2]]
    shapes.append(one.arrays[0].shape)
    filters = shapes[kernel][one.proto.one(16).number(4)]
    return 2.0 * math.prod(shapes[output]) * math.prod(shapes[kernel]) / filters


def _product_flops(one: Instruction, program: Program, contracted: list[int]) -> float:
    left = program.instructions[one.operands[0]].arrays[0].shape
    return 2.0 * math.prod(one.arrays[0].shape) * math.prod(left[axis] for axis in contracted)


def collective_bytes(program: Program) -> dict[str, int]:
    """Returns the bytes that each kind of collective reads on a device in one run."""
    sums: Counter[str] = Counter()
    for one, times in program.executed():
        kind = _opcode(one, program).removesuffix("-start")
        if kind in _BETWEEN_DEVICES:
            arrays = (array for name in one.operands for array in program.instructions[name].arrays)
            sums[kind] += times * sum(array.value_bytes for array in arrays)
    return dict(sums)


def memory_traffic(program: Program) -> int:
    """Returns the bytes that a run reads and writes in a device's memory, roughly.

    Every instruction reads its operands and writes its result; arrays on the chip cost nothing.
    """
    return sum(times * _moved(one, program) for one, times in program.executed())


def _moved(one: Instruction, program: Program) -> int:
    opcode = _opcode(one, program)
    if opcode in _FREE or one.target in _FREE_TARGETS:
        return 0
    if opcode == "slice-start":
        # It returns operand, part and a flag, and reads the part; slice-done writes it.
        return one.arrays[1].nbytes
    written = _device_bytes(one)
    if opcode in _PARTS:
        return sum(array.nbytes for array in one.arrays) + written
    if opcode.endswith("-done"):
        return written
    operands = (program.instructions[name] for name in one.operands)
    read = sum(_device_bytes(operand) for operand in operands if operand.opcode != "constant")
    # One half of an asynchronous copy reads, the other writes.
    return read if opcode.endswith("-start") else read + written


def _device_bytes(one: Instruction) -> int:
    return sum(array.nbytes for array in one.arrays if not array.on_chip)


def _opcode(one: Instruction, program: Program) -> str:
    """Returns the opcode; `async-start` is replaced by what it wraps, such as `slice-start`."""
    if one.opcode != "async-start":
        return one.opcode
    *_, root = program.inside(one.name)
    return f"{root.opcode}-start"


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds that each part takes at its published peak."""

    products: float
    """Arithmetic, at the peak of bfloat16 products."""
    memory: float
    """Traffic between chip and memory."""
    network: float
    """Sums over all devices."""

    @property
    def seconds(self) -> float:
        """The least time of a step, if its parts overlap completely."""
        return max(self.products, self.memory, self.network)

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        parts = asdict(self)
        return max(parts, key=parts.__getitem__)

    def to_dict(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        return {**asdict(self), "seconds": self.seconds, "bound": self.bound}


def estimate(
    chip: Figures, *, flops: float, traffic: float, collective: float, devices: int
) -> Roofline:
    """Returns the roofline of one step.

    Args:
        flops: operations of one device.
        traffic: bytes between one device and its memory.
        collective: bytes of one device that are summed over all devices.
    """
    # Each device sends and receives all but its own part twice: to sum, and to spread the sum.
    sent = 2 * collective * (devices - 1) / devices
    return Roofline(
        products=flops / (chip.flops / chip.devices),
        memory=traffic / (chip.hbm_bandwidth / chip.devices),
        network=sent / (chip.link_bandwidth / chip.devices),
    )
