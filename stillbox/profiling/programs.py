"""The compiled programs of a trace: what each of their operations is and where it comes from.

The profiler keeps the optimised program beside the events (`HloProto` in the plane
`/host:metadata`), so that a trace explains itself, wherever it was made. It has none of those that
came from the cache of compiled programs; they are asked of the runtime.
Source: openxla/xla, xla/service/hlo.proto and xla/xla_data.proto; xla/tsl/profiler/protobuf/
xplane.proto.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import jax

from stillbox.records.wire import LENGTH, bytes_field, fields, read_varint

_METADATA = b"/host:metadata"
# They pass on what they are given; who reads them reads that.
_ALIASES = ("bitcast", "get-tuple-element", "tuple")
_CONTAINERS = ("call", "while", "conditional", "async-start", "async-done", "command-buffer")


class Instruction(NamedTuple):
    """One operation of a compiled program."""

    name: str
    """Unique in the program."""
    kind: str
    """XLA's opcode, such as `convolution` or `fusion`."""
    target: str = ""
    """What a custom call calls."""
    origin: str = ""
    """What jax says about where it comes from, such as `jit(step)/jvp(backbone)/conv_0/add`."""
    source: str = ""
    """File and line; may be empty."""
    operands: tuple[str, ...] = ()
    """Names of what it reads."""
    called: tuple[str, ...] = ()
    """Names of the computations inside it."""


@dataclass(frozen=True)
class Program:
    """A compiled program."""

    instructions: Mapping[str, Instruction]
    """All of them, by name."""
    bodies: Mapping[str, tuple[str, ...]]
    """Names of the instructions of each computation."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes on one device, by what they are for."""

    def contains_others(self, name: str) -> bool:
        """Whether an instruction only holds others, which are in a trace themselves."""
        return self.instructions[name].kind in _CONTAINERS

    def inside(self, name: str) -> Iterator[Instruction]:
        """Yields the instructions of the computations that one calls."""
        for called in self.instructions[name].called:
            yield from (self.instructions[one] for one in self.bodies.get(called, ()))

    def readers(self, name: str) -> Iterator[str]:
        """Yields the instructions that read the result of one."""
        for reader in self._readers.get(name, ()):
            if self.instructions[reader].kind in _ALIASES:
                yield from self.readers(reader)
            else:
                yield reader

    @cached_property
    def callers(self) -> Mapping[str, str]:
        """The instruction that calls the computation which an instruction is in."""
        return {
            inner: one.name
            for one in self.instructions.values()
            for called in one.called
            for inner in self.bodies.get(called, ())
        }

    @cached_property
    def by_kernel(self) -> Mapping[str, str]:
        """Names of instructions by the names of the kernels made of them on a GPU."""
        return {kernel_name(name): name for name in self.instructions}

    @cached_property
    def _readers(self) -> Mapping[str, list[str]]:
        readers: dict[str, list[str]] = defaultdict(list)
        for one in self.instructions.values():
            for operand in one.operands:
                readers[operand].append(one.name)
        return readers


def kernel_name(name: str) -> str:
    """Returns what XLA calls the GPU kernel of an instruction."""
    return name.replace(".", "_").replace("-", "_")


def read_programs(trace: bytes, wanted: Collection[str]) -> dict[str, Program]:
    """Returns programs of a trace by name and number, such as `jit_step(7)`.

    Args:
        trace: an `XSpace`, which is what an `.xplane.pb` holds.
        wanted: those that ran; the profiler keeps every program of the process.

    Raises:
        IndexError: these are no such bytes.
    """
    programs = {}
    for plane in _messages(trace, 1):
        if _METADATA not in _messages(plane, 2):
            continue
        for entry in _messages(plane, 4):
            for event in _messages(entry, 2):
                name = _text(event, 2)
                if name not in wanted:
                    continue
                for stat in _messages(event, 5):
                    for proto in _messages(stat, 6):
                        programs[name] = _program(proto)
    return programs


def choose_programs(
    protos: Sequence[bytes], ran: Mapping[str, Collection[str]]
) -> dict[str, Program]:
    """Returns those of some programs that the operations of a trace belong to.

    Args:
        protos: `HloProto`s.
        ran: names of the operations, by name and number of their program.
    """
    found = {}
    for name, operations in ran.items():
        same = [one for one in protos if module_name(one) == name.partition("(")[0]]
        programs = [_program(one) for one in same]
        if programs:
            found[name] = max(programs, key=lambda one: len(one.instructions.keys() & operations))
    return found


def module_name(proto: bytes) -> str:
    """Returns the name of the program in an `HloProto`."""
    return _text(next(iter(_messages(proto, 1)), b""), 1)


def running_programs(wanted: Collection[str]) -> Iterator[bytes]:
    """Yields an `HloProto` for each program of this process that has one of these names."""
    for executable in jax.local_devices()[0].client.live_executables():
        for module in executable.hlo_modules():
            if module.name in wanted:
                assignment = executable.get_compiled_memory_stats()
                yield bytes_field(1, module.as_serialized_hlo_module_proto()) + bytes_field(
                    3, assignment.serialized_buffer_assignment_proto
                )


def _program(proto: bytes) -> Program:
    """Reads an `HloProto`."""
    (module,) = _messages(proto, 1) or [b""]
    sources = _Sources(module)
    computations = _messages(module, 3)
    names: dict[int, str] = {}
    for computation in computations:
        names[_number(computation, 5)] = _text(computation, 1)
        for one in _messages(computation, 2):
            names[_number(one, 35)] = _text(one, 1)
    instructions: dict[str, Instruction] = {}
    bodies = {}
    parameters: dict[int, str] = {}
    entry = _number(module, 6)
    for computation in computations:
        found = [_instruction(one, names, sources) for one in _messages(computation, 2)]
        bodies[_text(computation, 1)] = tuple(one.name for one in found)
        instructions |= {one.name: one for one in found}
        if _number(computation, 5) == entry:
            for known, message in zip(found, _messages(computation, 2), strict=True):
                if known.kind == "parameter":
                    parameters[_number(message, 9)] = known.origin
    memory: dict[str, int] = {}
    for assignment in _messages(proto, 3):
        memory = _memory(assignment, parameters)
    return Program(instructions, bodies, memory)


def _instruction(message: bytes, names: Mapping[int, str], sources: "_Sources") -> Instruction:
    (metadata,) = _messages(message, 7) or [b""]
    return Instruction(
        name=_text(message, 1),
        kind=_text(message, 2),
        target=_text(message, 28),
        origin=_text(metadata, 2),
        source=sources.of(metadata),
        operands=tuple(names.get(one, "") for one in _numbers(message, 36)),
        called=tuple(names.get(one, "") for one in _numbers(message, 38)),
    )


class _Sources:
    """Finds file and line of an `OpMetadata`: in itself, or in the module's table of frames."""

    def __init__(self, module: bytes) -> None:
        (index,) = _messages(module, 17) or [b""]
        self._files = [name.decode(errors="replace") for name in _messages(index, 1)]
        self._locations, self._frames = _messages(index, 3), _messages(index, 4)

    def of(self, metadata: bytes) -> str:
        file, line = _text(metadata, 3), _number(metadata, 4)
        frame = _number(metadata, 15)
        if not file and 0 < frame <= len(self._frames):
            place = _number(self._frames[frame - 1], 1)
            if 0 < place <= len(self._locations):
                location = self._locations[place - 1]
                number, line = _number(location, 1), _number(location, 3)
                file = self._files[number - 1] if 0 < number <= len(self._files) else ""
        return f"{file}:{line}" if file else ""


def _memory(assignment: bytes, parameters: Mapping[int, str]) -> dict[str, int]:
    """Returns bytes by use; what an argument gives away to a result counts as the argument."""
    sizes: dict[str, int] = defaultdict(int)
    for one in _messages(assignment, 3):
        size = _number(one, 2)
        if _number(one, 3):  # of a thread, and a few bytes
            continue
        if _number(one, 5):
            origin = parameters.get(_number(one, 6), "").partition("[")[0]
            sizes[f"argument {origin}".strip()] += size
        elif _number(one, 7):
            sizes["results"] += size
        else:
            sizes["constants" if _number(one, 12) else "temporary"] += size
    return dict(sizes)


def _messages(data: bytes, number: int) -> list[bytes]:
    return [
        data[start:end]
        for found, kind, start, end in fields(data, 0, len(data))
        if found == number and kind == LENGTH
    ]


def _text(data: bytes, number: int) -> str:
    found = _messages(data, number)
    return found[-1].decode(errors="replace") if found else ""


def _number(data: bytes, number: int) -> int:
    found = _numbers(data, number)
    return found[-1] if found else 0


def _numbers(data: bytes, number: int) -> list[int]:
    """Returns the numbers of a repeated field, packed or not."""
    values = []
    for found, _, start, end in fields(data, 0, len(data)):
        if found != number:
            continue
        while start < end:
            value, start = read_varint(data, start)
            values.append(value)
    return values
