"""What a compiled program takes of a device's memory, and what for."""

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from stillbox.profiling.hlo import Program

# How XLA names the arguments of our programs; what matches nothing is a part of the batch.
_KINDS = (
    (re.compile(r"^(state\.)?(params|stats)\b"), "parameters"),
    (re.compile(r"^state\.optimizer\b"), "optimizer"),
    (re.compile(r"^state\.ema\b"), "average"),
    (re.compile(r"^state\."), "parameters"),
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on each device; padding to whole tiles is included."""

    parameters: int
    """Parameters and moving statistics."""
    optimizer: int
    """Accumulators of the optimiser."""
    average: int
    """Moving average of the parameters."""
    batch: int
    """Images, boxes and the rest of a batch."""
    results: int
    """What the program returns and does not write over an argument."""
    temporaries: int
    """Activations kept for the gradient, and everything else that lives within a step."""
    code: int
    """The program itself."""
    usable: int
    """What the compiler lets a program take."""

    @property
    def total(self) -> int:
        """All of it."""
        arguments = self.parameters + self.optimizer + self.average + self.batch
        return arguments + self.results + self.temporaries + self.code

    @property
    def left(self) -> int:
        """Head-room, negative where it does not fit."""
        return self.usable - self.total

    def to_dict(self) -> dict[str, int]:
        """Returns plain values, for JSON."""
        return {**asdict(self), "total": self.total, "left": self.left}


def measure_memory(analysis: Any, program: Program, usable: float) -> Memory:  # noqa: ANN401
    """Says what a program's memory is taken by.

    Args:
        analysis: of `compiled.memory_analysis()`.
        program: the same program.
        usable: bytes that a program may take on a device.
    """
    arguments = _arguments(program)
    named = sum(arguments.values())
    # What no parameter explains is padding of the batch.
    arguments["batch"] += max(analysis.argument_size_in_bytes - named, 0)
    return Memory(
        parameters=arguments["parameters"],
        optimizer=arguments["optimizer"],
        average=arguments["average"],
        batch=arguments["batch"],
        results=max(analysis.output_size_in_bytes - analysis.alias_size_in_bytes, 0),
        temporaries=analysis.temp_size_in_bytes,
        code=analysis.generated_code_size_in_bytes,
        usable=int(usable),
    )


def _arguments(program: Program) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for one in program.parameters():
        kind = next((kind for pattern, kind in _KINDS if pattern.match(one.op_name)), "batch")
        sizes[kind] += sum(array.nbytes for array in one.arrays)
    return sizes
