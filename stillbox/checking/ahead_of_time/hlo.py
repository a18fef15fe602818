"""Compiled programs: `HloModuleProto`.

Sources: openxla/xla, xla/service/hlo.proto and xla/xla_data.proto. Layouts and tiles:
https://openxla.org/xla/shapes, https://openxla.org/xla/tiled_layout.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from stillbox.records.wire import fields, read_varint

# Bits of an element by `PrimitiveType`, where they are not 8; opaque values and tokens have none.
_BITS = {3: 16, 4: 32, 5: 64, 7: 16, 8: 32, 9: 64, 10: 16, 11: 32, 12: 64, 15: 64, 16: 16, 18: 128}
_BITS |= {14: 0, 17: 0}
_TUPLE = 13
_ON_CHIP = 1
_TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')


class Message:
    """The fields of a protobuf message by number; absent ones are empty.

    Raises:
        IndexError: the bytes are not a message.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._fields: dict[int, list[bytes]] = defaultdict(list)
        for number, _, start, end in fields(data, 0, len(data)):
            self._fields[number].append(data[start:end])

    def raw(self, number: int) -> list[bytes]:
        """Returns the bytes of every value of a field."""
        return self._fields.get(number, [])

    def all(self, number: int) -> "list[Message]":
        """Returns the values of a repeated field of messages."""
        return [Message(data) for data in self.raw(number)]

    def message(self, number: int) -> "Message":
        """Returns the value of a field that is a message."""
        return Message(self.raw(number)[-1] if self.raw(number) else b"")

    def text(self, number: int) -> str:
        """Returns the value of a field that is a string."""
        return self.raw(number)[-1].decode(errors="replace") if self.raw(number) else ""

    def numbers(self, number: int) -> list[int]:
        """Returns the values of a repeated field of integers, packed or not."""
        values = []
        for data in self.raw(number):
            at = 0
            while at < len(data):
                value, at = read_varint(data, at)
                values.append(value)
        return values

    def number(self, number: int) -> int:
        """Returns the value of a field that is an integer."""
        return (self.numbers(number) or [0])[-1]


@dataclass(frozen=True)
class Array:
    """An array that an instruction returns."""

    shape: tuple[int, ...]
    value_bytes: int
    nbytes: int
    """Bytes that it occupies, with the padding of its tiles."""
    on_chip: bool
    """Whether it is in the processor's own memory, not in the device's."""


@dataclass(frozen=True)
class Instruction:
    """One operation of a compiled program."""

    name: str
    """Unique in the program."""
    opcode: str
    """Such as `convolution` or `fusion`."""
    target: str = ""
    """The function that a custom call calls."""
    op_name: str = ""
    """Path of the instruction in JAX, such as `jit(step)/jvp(backbone)/conv_0/add`."""
    operands: tuple[str, ...] = ()
    """Names of the instructions that it reads."""
    called: tuple[str, ...] = ()
    """Names of the computations that it calls."""
    proto: Message = field(default_factory=Message, repr=False, compare=False)
    """The `HloInstructionProto`."""

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The results; more than one for a tuple."""
        return tuple(_arrays(self.proto.message(3)))

    @property
    def config(self) -> str:
        """The backend's configuration, JSON."""
        return self.proto.text(43)


@dataclass(frozen=True)
class Program:
    """A compiled program."""

    instructions: Mapping[str, Instruction]
    """All of them, by name."""
    bodies: Mapping[str, tuple[str, ...]]
    """Names of the instructions of each computation."""
    entry: str = ""
    """Name of the computation that is run."""

    def body(self, computation: str) -> Iterator[Instruction]:
        """Yields the instructions of a computation."""
        yield from (self.instructions[name] for name in self.bodies.get(computation, ()))

    def inside(self, name: str) -> Iterator[Instruction]:
        """Yields the instructions of the computations that an instruction calls."""
        for called in self.instructions[name].called:
            yield from self.body(called)

    def executed(self) -> Iterator[tuple[Instruction, int]]:
        """Yields each scheduled instruction with the least number of times that it runs.

        Calls and loops are followed; a loop of unknown length counts as one round. The branches of
        a conditional are left out, and so are the bodies of fusions.
        """
        yield from self._executed(self.entry, 1)

    def _executed(self, computation: str, times: int) -> Iterator[tuple[Instruction, int]]:
        for instruction in self.body(computation):
            yield instruction, times
            if instruction.opcode == "while":
                rounds = _TRIP_COUNT.search(instruction.config)
                # The body is the first computation, the condition the second.
                yield from self._executed(
                    instruction.called[0], times * (int(rounds[1]) if rounds else 1)
                )
            elif instruction.opcode == "call":
                yield from self._executed(instruction.called[0], times)

    def parameters(self) -> list[Instruction]:
        """Returns the entry computation's parameters in their order."""
        parameters = [step for step in self.body(self.entry) if step.opcode == "parameter"]
        return sorted(parameters, key=lambda parameter: parameter.proto.number(9))


def read_program(module: Message) -> Program:
    """Reads a compiled program from an `HloModuleProto`."""
    computations = [(computation, computation.all(2)) for computation in module.all(3)]
    names = {proto.number(35): proto.text(1) for _, body in computations for proto in body}
    called = {computation.number(5): computation.text(1) for computation, _ in computations}
    instructions: dict[str, Instruction] = {}
    bodies = {}
    for computation, body in computations:
        read = {proto.text(1): _instruction(proto, names, called) for proto in body}
        bodies[computation.text(1)] = tuple(read)
        instructions |= read
    return Program(instructions, bodies, called.get(module.number(6), ""))


def _instruction(
    proto: Message, names: Mapping[int, str], called: Mapping[int, str]
) -> Instruction:
    return Instruction(
        name=proto.text(1),
        opcode=proto.text(2),
        target=proto.text(28),
        op_name=proto.message(7).text(2),
        operands=tuple(names.get(number, "") for number in proto.numbers(36)),
        called=tuple(called.get(number, "") for number in proto.numbers(38)),
        proto=proto,
    )


def _arrays(shape: Message) -> Iterator[Array]:
    """Yields the arrays of a `ShapeProto`; a tuple has several, in their order."""
    if shape.number(2) == _TUPLE:
        for part in shape.all(4):
            yield from _arrays(part)
        return
    sizes, layout = shape.numbers(3), shape.message(5)
    bits = layout.number(7) or _BITS.get(shape.number(2), 8)
    # Tiles are written from major to minor, and the first one pads the array.
    padded = [sizes[axis] for axis in reversed(layout.numbers(1))] or sizes
    tile = layout.all(6)[0].numbers(1) if layout.raw(6) else []
    padded = [1] * (len(tile) - len(padded)) + padded
    for axis, side in enumerate(reversed(tile), start=1):
        padded[-axis] = -(-padded[-axis] // side) * side
    yield Array(
        shape=tuple(sizes),
        value_bytes=math.prod(sizes) * bits // 8,
        nbytes=math.prod(padded) * bits // 8,
        on_chip=layout.number(8) == _ON_CHIP,
    )
