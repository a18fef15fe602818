"""Compiled programs as XLA's runtime and profiler hold them: `HloModuleProto`.

The profiler keeps the optimised program beside the events (`HloProto` in the plane
`/host:metadata`): a trace can be read on any machine. Programs that came from the cache
of compiled programs are missing there; the runtime has them. Sources: openxla/xla,
xla/service/hlo.proto and xla/xla_data.proto; xla/tsl/profiler/protobuf/xplane.proto. Layouts and
tiles: https://openxla.org/xla/shapes, https://openxla.org/xla/tiled_layout.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax

from stillbox.records.wire import bytes_field, fields, read_varint

# Bits of an element by `PrimitiveType`, where they are not 8; opaque values and tokens have none.
_BITS = {3: 16, 4: 32, 5: 64, 7: 16, 8: 32, 9: 64, 10: 16, 11: 32, 12: 64, 15: 64, 16: 16, 18: 128}
_BITS |= {14: 0, 17: 0}
_TUPLE = 13
_ON_CHIP = 1
# They return their operand under another name.
_ALIASES = ("bitcast", "get-tuple-element", "tuple")
_CONTAINERS = ("call", "while", "conditional", "async-start", "async-done", "command-buffer")
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

    def one(self, number: int) -> "Message":
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
    """Its path in JAX, such as `jit(step)/jvp(backbone)/conv_0/add`."""
    source: str = ""
    """File and line; may be empty."""
    operands: tuple[str, ...] = ()
    """Names of the instructions that it reads."""
    called: tuple[str, ...] = ()
    """Names of the computations that it calls."""
    proto: Message = field(default_factory=Message, repr=False, compare=False)
    """The `HloInstructionProto`."""

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Its results; more than one for a tuple."""
        return tuple(_arrays(self.proto.one(3)))

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
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes on one device by use; empty where the assignment of buffers is not known."""

    def contains_others(self, name: str) -> bool:
        """Whether an instruction only runs others, which are in a trace themselves."""
        return name in self.instructions and self.instructions[name].opcode in _CONTAINERS

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
        for one in self.body(computation):
            yield one, times
            if one.opcode == "while":
                rounds = _TRIP_COUNT.search(one.config)
                # The body is the first computation, the condition the second.
                yield from self._executed(one.called[0], times * (int(rounds[1]) if rounds else 1))
            elif one.opcode == "call":
                yield from self._executed(one.called[0], times)

    def parameters(self) -> list[Instruction]:
        """Returns the entry computation's parameters in their order."""
        found = [one for one in self.body(self.entry) if one.opcode == "parameter"]
        return sorted(found, key=lambda one: one.proto.number(9))

    def readers(self, name: str) -> Iterator[str]:
        """Yields the names of the instructions that read the result of one."""
        for reader in self._readers.get(name, ()):
            if self.instructions[reader].opcode in _ALIASES:
                yield from self.readers(reader)
            else:
                yield reader

    @cached_property
    def callers(self) -> Mapping[str, str]:
        """By instruction, the one that calls the computation around it."""
        return {inner.name: name for name in self.instructions for inner in self.inside(name)}

    @cached_property
    def by_kernel(self) -> Mapping[str, str]:
        """Names of instructions by the names of their GPU kernels."""
        return {name.replace(".", "_").replace("-", "_"): name for name in self.instructions}

    @cached_property
    def _readers(self) -> Mapping[str, list[str]]:
        readers: dict[str, list[str]] = defaultdict(list)
        for one in self.instructions.values():
            for operand in one.operands:
                readers[operand].append(one.name)
        return readers


UNKNOWN = Program({}, {})
"""A program of which nothing is known."""


def read_program(module: Message, assignment: Message | None = None) -> Program:
    """Reads a compiled program.

    Args:
        module: an `HloModuleProto`.
        assignment: its `BufferAssignmentProto`, which gives `Program.memory`.
    """
    computations = [(one, one.all(2)) for one in module.all(3)]
    names = {one.number(35): one.text(1) for _, body in computations for one in body}
    called = {one.number(5): one.text(1) for one, _ in computations}
    source_of = _Sources(module.one(17))
    instructions: dict[str, Instruction] = {}
    bodies = {}
    for computation, body in computations:
        found = [_instruction(one, names, called, source_of) for one in body]
        bodies[computation.text(1)] = tuple(one.name for one in found)
        instructions |= {one.name: one for one in found}
    program = Program(instructions, bodies, called.get(module.number(6), ""))
    return replace(program, memory=_memory(assignment, program)) if assignment else program


def _instruction(
    proto: Message, names: Mapping[int, str], called: Mapping[int, str], source_of: "_Sources"
) -> Instruction:
    metadata = proto.one(7)
    return Instruction(
        name=proto.text(1),
        opcode=proto.text(2),
        target=proto.text(28),
        op_name=metadata.text(2),
        source=source_of(metadata),
        operands=tuple(names.get(one, "") for one in proto.numbers(36)),
        called=tuple(called.get(one, "") for one in proto.numbers(38)),
        proto=proto,
    )


class _Sources:
    """Finds file and line of an `OpMetadata`: in itself, or in the module's table of frames."""

    def __init__(self, index: Message) -> None:
        self._files = [name.decode(errors="replace") for name in index.raw(1)]
        self._locations, self._frames = index.all(3), index.all(4)

    def __call__(self, metadata: Message) -> str:
        file, line = metadata.text(3), metadata.number(4)
        frame = metadata.number(15)
        if not file and 0 < frame <= len(self._frames):
            place = self._frames[frame - 1].number(1)
            if 0 < place <= len(self._locations):
                location = self._locations[place - 1]
                number, line = location.number(1), location.number(3)
                file = self._files[number - 1] if 0 < number <= len(self._files) else ""
        return f"{file}:{line}" if file else ""


def _arrays(shape: Message) -> Iterator[Array]:
    """Yields the arrays of a `ShapeProto`, those of a tuple in their order."""
    if shape.number(2) == _TUPLE:
        for part in shape.all(4):
            yield from _arrays(part)
        return
    sizes, layout = shape.numbers(3), shape.one(5)
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


def _memory(assignment: Message, program: Program) -> dict[str, int]:
    """Returns bytes by use; an argument's buffer that a result reuses counts as the argument."""
    parameters = program.parameters()
    sizes: dict[str, int] = defaultdict(int)
    for one in assignment.all(3):
        use = "constants" if one.number(12) else "temporary"
        if one.number(3):  # a few bytes of a thread
            continue
        if one.number(5):
            path = parameters[one.number(6)].op_name
            use = f"argument {path.partition('[')[0]}".strip()
        elif one.number(7):
            use = "results"
        sizes[use] += one.number(2)
    return dict(sizes)


_METADATA = "/host:metadata"


def read_programs(trace: bytes, wanted: Collection[str]) -> dict[str, Program]:
    """Returns programs of a trace by name and number, such as `jit_step(7)`.

    Args:
        trace: an `XSpace`, the content of an `.xplane.pb`.
        wanted: programs that ran; the profiler keeps every program of the process.

    Raises:
        IndexError: the bytes are not a trace.
    """
    planes = [plane for plane in Message(trace).all(1) if plane.text(2) == _METADATA]
    events = [event for plane in planes for entry in plane.all(4) for event in entry.all(2)]
    return {
        event.text(2): _read(proto)
        for event in events
        if event.text(2) in wanted
        for stat in event.all(5)
        for proto in stat.all(6)
    }


def choose_programs(
    protos: Sequence[bytes], ran: Mapping[str, Collection[str]]
) -> dict[str, Program]:
    """Returns the programs that the operations of a trace belong to.

    Args:
        protos: `HloProto`s, of which several may have one name.
        ran: names of the operations, by name and number of their program.
    """
    found = {}
    messages = [Message(proto) for proto in protos]
    for name, operations in ran.items():
        same = [one for one in messages if one.one(1).text(1) == name.partition("(")[0]]
        programs = [_read(one) for one in same]
        if programs:
            found[name] = max(programs, key=lambda one: len(one.instructions.keys() & operations))
    return found


def running_programs(wanted: Collection[str]) -> Iterator[bytes]:
    """Yields the `HloProto` of each program of this process that has one of these names."""
    for executable in jax.local_devices()[0].client.live_executables():
        for module in executable.hlo_modules():
            if module.name in wanted:
                memory = executable.get_compiled_memory_stats()
                yield bytes_field(1, module.as_serialized_hlo_module_proto()) + bytes_field(
                    3, memory.serialized_buffer_assignment_proto
                )


def _read(proto: Message) -> Program:
    """Reads an `HloProto`."""
    return read_program(proto.one(1), proto.one(3))
