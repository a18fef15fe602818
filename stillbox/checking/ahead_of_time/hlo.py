"""The text of a compiled program, as far as sizes and traffic can be read off it.

XLA prints one instruction a line: `%name = shape opcode(%operand, ...), attributes`. A shape is
`type[dimensions]{order:tiles and memory space}`, where the order names dimensions from minor to
major, `T(8,128)` is the tile that the last two are padded to, and `S(1)` is on-chip memory
(https://openxla.org/xla/shapes, https://openxla.org/xla/tiled_layout).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_BITS = {"pred": 8, "c64": 64, "c128": 128, "bf16": 16, "token": 0}
_ARRAY = re.compile(
    r"(?P<type>\w+)\[(?P<sides>[\d,]*)\](?:\{(?P<order>[\d,]*):?(?P<rest>[^}]*)\})?"
)
_HEAD = re.compile(r"\s*(?:ROOT )?%(?P<name>[\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%(?P<name>[\w.\-]+) \(.*\{$")


@dataclass(frozen=True)
class Array:
    """One array of a shape."""

    nbytes: int
    """Bytes that it takes, what its tiles are padded with included."""
    value_bytes: int
    """Bytes of its numbers alone."""
    sides: tuple[int, ...]
    """Its shape."""
    on_chip: bool
    """Whether it lies in the processor's own memory and not in the device's."""


@dataclass(frozen=True)
class Instruction:
    """One line."""

    name: str
    """Unique in the program."""
    opcode: str
    """What it does."""
    arrays: tuple[Array, ...]
    """What comes out: more than one for a tuple."""
    operands: tuple[str, ...]
    """Names of what goes in."""
    text: str
    """All of the line."""

    @property
    def target(self) -> str:
        """The function outside of XLA that it calls; empty if it calls none."""
        found = self.opcode == "custom-call" and _TARGET.search(self.text)
        return found[1] if found else ""

    @property
    def nbytes(self) -> int:
        """Bytes of all that comes out."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def device_bytes(self) -> int:
        """Bytes of what comes out and lies in the device's memory."""
        return sum(array.nbytes for array in self.arrays if not array.on_chip)

    @property
    def value_bytes(self) -> int:
        """Bytes of the numbers that come out, without padding."""
        return sum(array.value_bytes for array in self.arrays)


@dataclass
class Program:
    """The instructions of a compiled program."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    """By name; bodies of fusions and loops are computations of their own."""
    entry: str = ""
    """Name of the computation that is run."""

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """All instructions."""
        return {line.name: line for lines in self.computations.values() for line in lines}

    def executed(self) -> Iterator[tuple[Instruction, int]]:
        """Yields each instruction that is scheduled, with how often it runs at least.

        Bodies of loops are followed; a loop whose number of rounds is decided while it runs counts
        as one. Of a conditional the branches are left out.
        """
        yield from self._walk(self.entry, 1)

    def _walk(self, name: str, times: int) -> Iterator[tuple[Instruction, int]]:
        for line in self.computations[name]:
            yield line, times
            body = re.search(r"body=%([\w.\-]+)", line.text)
            if line.opcode == "while" and body:
                rounds = re.search(r'known_trip_count":\{"n":"(\d+)"', line.text)
                yield from self._walk(body[1], times * (int(rounds[1]) if rounds else 1))


def read_program(text: str) -> Program:
    """Reads what `compiled.as_text()` returns."""
    program, lines = Program(), []
    for row in text.splitlines():
        if head := _COMPUTATION.match(row):
            lines = program.computations.setdefault(head["name"], [])
            if head["entry"]:
                program.entry = head["name"]
        elif line := _read_instruction(row):
            lines.append(line)
    return program


def _read_instruction(row: str) -> Instruction | None:
    head = _HEAD.match(row)
    if not head:
        return None
    shape_end = _closing(row, head.end()) if row[head.end()] == "(" else row.find(" ", head.end())
    opening = row.find("(", shape_end)
    inside = row[opening : _closing(row, opening)]
    return Instruction(
        name=head["name"],
        opcode=row[shape_end:opening].strip(),
        arrays=tuple(read_arrays(row[head.end() : shape_end])),
        operands=tuple(_OPERAND.findall(inside)),
        text=row,
    )


def _closing(row: str, opening: int) -> int:
    """Returns the place behind the bracket that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(row)):
        depth += (row[place] == "(") - (row[place] == ")")
        if depth == 0:
            return place + 1
    return len(row)


def read_arrays(shape: str) -> list[Array]:
    """Returns the arrays of a shape in text, those of a tuple in its order."""
    return [_array(found) for found in _ARRAY.finditer(shape)]


def _array(found: re.Match[str]) -> Array:
    sides = [int(side) for side in found["sides"].split(",") if side]
    shape, values = tuple(sides), math.prod(sides)
    rest = found["rest"] or ""
    if found["order"]:
        # Major first, as tiles are written.
        sides = [sides[int(place)] for place in reversed(found["order"].split(","))]
    if tile := re.match(r"T\(([\d,]+)\)", rest):
        tiled = [int(side) for side in tile[1].split(",")]
        sides = [1] * (len(tiled) - len(sides)) + sides
        for place, side in enumerate(reversed(tiled), start=1):
            sides[-place] = -(-sides[-place] // side) * side
    bits = _BITS.get(found["type"]) or int(re.sub(r"\D", "", found["type"]) or 0)
    return Array(math.prod(sides) * bits // 8, values * bits // 8, shape, "S(1)" in rest)
