"""The costs of a compiled program, and the least time that they take.

Operations and traffic are counted in the program. The time is that of the roofline model (Williams,
Waterman and Patterson, 2009) with published figures of the chip, and with a third roof for the
network; nothing is measured.
"""

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass

from stillbox.devices.chips import Figures
from stillbox.profiling.hlo import Instruction, Program

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
_COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
_COLLECTIVES |= {"ragged-all-to-all"}
# They move nothing: they rename what is there, or their bodies are counted instead.
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
        if kind in _COLLECTIVES:
            arrays = (array for name in one.operands for array in program.instructions[name].arrays)
            sums[kind] += times * sum(array.value_bytes for array in arrays)
    return dict(sums)


def memory_traffic(program: Program) -> int:
    """Returns the bytes that a run reads and writes in a device's memory, roughly.

    Every instruction reads its operands and writes its result; what is on the chip costs nothing.
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
