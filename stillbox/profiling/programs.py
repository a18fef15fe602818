"""Finds the compiled programs of a trace.

The profiler keeps the optimised program beside the events (`HloProto` in the plane
`/host:metadata`), so that a trace explains itself wherever it was made. Programs that came from the
cache of compiled programs are missing there; the runtime has them.
Source: openxla/xla, xla/service/hlo.proto; xla/tsl/profiler/protobuf/xplane.proto.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import jax

from stillbox.profiling.hlo import Message, Program, read_program
from stillbox.records.wire import bytes_field

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
