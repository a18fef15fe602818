"""The costs of a compiled program, counted in its instructions."""

import math
import re
from collections import Counter

from stillbox.checking.ahead_of_time.hlo import Instruction, Program

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
# Instructions that move no data: they rename arrays, or their bodies are counted instead.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"}
_FREE |= {"call", "after-all", "partition-id", "replica-id"}
_FREE_TARGETS = {"ConcatBitcast", "AllocateBuffer"}
# Instructions that read a part of their operand as large as their result.
_PARTS = {"slice", "dynamic-slice", "gather"}


def count_flops(program: Program) -> float:
    """Returns the operations of all convolutions and matrix products of a run on one device.

    A multiplication and its addition count as two. XLA counts the operations of what it compiles
    itself, but not of cuDNN and cuBLAS where there is no GPU.
    """
    return sum(times * _flops(instruction, program) for instruction, times in program.executed())


def _flops(instruction: Instruction, program: Program) -> float:
    if instruction.opcode == "fusion":
        return sum(_flops(inner, program) for inner in program.inside(instruction.name))
    if instruction.opcode == "convolution":
        return _convolution_flops(instruction, program, 1, 2)
    if instruction.target in _CUDNN_CONVOLUTIONS:
        return _convolution_flops(instruction, program, *_CUDNN_CONVOLUTIONS[instruction.target])
    if instruction.opcode == "dot":
        return _product_flops(instruction, program, instruction.proto.message(30).numbers(1))
    if instruction.target in _CUBLAS_PRODUCTS and (
        axes := _GEMM_CONTRACTED.search(instruction.config)
    ):
        return _product_flops(
            instruction, program, [int(axis) for axis in re.findall(r"\d+", axes[1])]
        )
    return 0.0


def _convolution_flops(
    instruction: Instruction, program: Program, kernel: int, output: int
) -> float:
    """Every element of the output is a sum over one filter of the kernel."""
    shapes = [program.instructions[name].arrays[0].shape for name in instruction.operands[:2]]
    shapes.append(instruction.arrays[0].shape)
    filters = shapes[kernel][instruction.proto.message(16).number(4)]
    return 2.0 * math.prod(shapes[output]) * math.prod(shapes[kernel]) / filters


def _product_flops(instruction: Instruction, program: Program, contracted: list[int]) -> float:
    left = program.instructions[instruction.operands[0]].arrays[0].shape
    return (
        2.0 * math.prod(instruction.arrays[0].shape) * math.prod(left[axis] for axis in contracted)
    )


def collective_bytes(program: Program) -> dict[str, int]:
    """Returns the bytes that each kind of collective reads on a device in one run."""
    sums: Counter[str] = Counter()
    for instruction, times in program.executed():
        kind = _opcode(instruction, program).removesuffix("-start")
        if kind in _BETWEEN_DEVICES:
            arrays = (
                array
                for name in instruction.operands
                for array in program.instructions[name].arrays
            )
            sums[kind] += times * sum(array.value_bytes for array in arrays)
    return dict(sums)


def memory_traffic(program: Program) -> int:
    """Returns the bytes that a run reads and writes in a device's memory, roughly.

    Every instruction reads its operands and writes its result; arrays on the chip cost nothing.
    """
    return sum(times * _moved(instruction, program) for instruction, times in program.executed())


def _moved(instruction: Instruction, program: Program) -> int:
    opcode = _opcode(instruction, program)
    if opcode in _FREE or instruction.target in _FREE_TARGETS:
        return 0
    if opcode == "slice-start":
        # A slice-start returns operand, part and a flag, and reads the part; slice-done writes it.
        return instruction.arrays[1].nbytes
    written = _device_bytes(instruction)
    if opcode in _PARTS:
        return sum(array.nbytes for array in instruction.arrays) + written
    if opcode.endswith("-done"):
        return written
    operands = (program.instructions[name] for name in instruction.operands)
    read = sum(_device_bytes(operand) for operand in operands if operand.opcode != "constant")
    # One half of an asynchronous copy reads, the other writes.
    return read if opcode.endswith("-start") else read + written


def _device_bytes(instruction: Instruction) -> int:
    return sum(array.nbytes for array in instruction.arrays if not array.on_chip)


def _opcode(instruction: Instruction, program: Program) -> str:
    """Returns the opcode; `async-start` is replaced by what it wraps, such as `slice-start`."""
    if instruction.opcode != "async-start":
        return instruction.opcode
    *_, root = program.inside(instruction.name)
    return f"{root.opcode}-start"
