"""The memory that a compiled program takes on a device, by use."""

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from stillbox.profiling.hlo import Program

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
        """Bytes to spare; negative where it does not fit."""
        return self.usable - self.total

    def to_dict(self) -> dict[str, int]:
        """Returns plain values, for JSON."""
        return {**asdict(self), "total": self.total, "left": self.left}


def measure_memory(analysis: Any, program: Program, usable: float) -> Memory:  # noqa: ANN401
    """Returns the memory of a program, with its `compiled.memory_analysis()`."""
    arguments: Counter[str] = Counter()
    for one in program.parameters():
        kind = next((kind for pattern, kind in _KINDS if pattern.match(one.op_name)), "batch")
        arguments[kind] += sum(array.nbytes for array in one.arrays)
    # What no parameter explains is padding of the batch.
    arguments["batch"] += max(analysis.argument_size_in_bytes - arguments.total(), 0)
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
