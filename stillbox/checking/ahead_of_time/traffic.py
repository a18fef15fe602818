"""What a compiled program moves: between devices, and between a device and its memory."""

from collections import Counter

from stillbox.checking.ahead_of_time.hlo import Instruction, Program

# An asynchronous one is two instructions, of which the first has the operands.
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
)
# They move nothing: other names for what is there, or bodies that are followed.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "partition-id",
    "replica-id",
}
# Other names for what is there, as custom calls.
_FREE_TARGETS = {"ConcatBitcast", "AllocateBuffer"}
# They touch a part of their operand, as large as what comes out.
_PARTS = {"slice", "dynamic-slice", "gather"}


def collective_bytes(program: Program) -> dict[str, int]:
    """Returns the bytes that each kind of collective takes in on a device in one run.

    Args:
        program: a compiled one, in which all devices run the same.
    """
    sums: Counter[str] = Counter()
    for line, times in program.executed():
        kind = line.opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            sums[kind] += times * sum(
                program.by_name[name].value_bytes
                for name in line.operands
                if name in program.by_name
            )
    return dict(sums)


def memory_traffic(program: Program) -> int:
    """Returns the bytes that a run reads and writes in a device's memory, roughly.

    Every instruction reads its operands and writes what comes out of it; what lies on the chip
    costs nothing. A loop whose number of rounds is not known counts as one round.
    """
    return sum(times * _moved(line, program) for line, times in program.executed())


def _moved(line: Instruction, program: Program) -> int:
    if line.opcode in _FREE or line.target in _FREE_TARGETS:
        return 0
    if line.opcode == "slice-start":
        # Operand, part and a flag; its other half writes the part.
        return line.arrays[1].nbytes
    if line.opcode in _PARTS:
        return line.nbytes + line.device_bytes
    # Of the two halves of an asynchronous copy one reads and the other writes.
    written = 0 if line.opcode.endswith("-start") else line.device_bytes
    if line.opcode.endswith("-done"):
        return written
    operands = (program.by_name.get(name) for name in line.operands)
    return written + sum(
        operand.device_bytes for operand in operands if operand and operand.opcode != "constant"
    )
