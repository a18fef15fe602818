"""The products of a program compiled for GPUs, counted in its text.

XLA counts the operations of what it compiles itself; of cuDNN's and cuBLAS's part it says nothing
where no GPU is there.
"""

import math
import re

from stillbox.checking.ahead_of_time.hlo import Instruction, Program

_CALLED = re.compile(r"calls=%([\w.\-]+)")
# Which of (operand 0, operand 1, result) is the kernel, and which the output of the forward form.
_CONVOLUTIONS = {
    "__cudnn$convForward": (1, 2),
    "__cudnn$convForwardGraph": (1, 2),
    "__cudnn$convBiasActivationForward": (1, 2),
    "__cudnn$convBackwardInput": (1, 0),
    "__cudnn$convBackwardFilter": (2, 1),
}
_GEMMS = ("__cublas$gemm", "__cublas$lt$matmul")
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->\w+")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)[}\]]')


def count_products(program: Program) -> float:
    """Returns the operations of all convolutions and matrix products of a run on one device.

    A product and its sum count as two; a loop whose number of rounds is not known as one round.
    """
    return sum(times * _operations(line, program) for line, times in program.executed())


def _operations(line: Instruction, program: Program) -> float:
    if line.opcode == "fusion" and (called := _CALLED.search(line.text)):
        return sum(_operations(inner, program) for inner in program.computations[called[1]])
    if line.target in _CONVOLUTIONS:
        return _convolution(line, program, *_CONVOLUTIONS[line.target])
    if line.opcode == "convolution":
        return _convolution(line, program, 1, 2)
    if line.opcode == "dot" or line.target in _GEMMS:
        return _matrix_product(line, program)
    return 0.0


def _convolution(line: Instruction, program: Program, kernel: int, output: int) -> float:
    """Every number of the output is a sum over one filter of the kernel."""
    labels = _LABELS.search(line.text)
    if not labels:
        return 0.0
    arrays = [_sides(program, name) for name in line.operands[:2]] + [line.arrays[0].sides]
    filters = arrays[kernel][labels[1].index("o")]
    return 2.0 * math.prod(arrays[output]) * math.prod(arrays[kernel]) / filters


def _matrix_product(line: Instruction, program: Program) -> float:
    contracted = _CONTRACTED.search(line.text)
    if not contracted:
        return 0.0
    left = _sides(program, line.operands[0])
    depth = math.prod(left[int(axis)] for axis in re.findall(r"\d+", contracted[1]))
    return 2.0 * math.prod(line.arrays[0].sides) * depth


def _sides(program: Program, name: str) -> tuple[int, ...]:
    return program.by_name[name].arrays[0].sides
