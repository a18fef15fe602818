"""The events of a trace on a CPU, a GPU or a TPU.

The place of a compiled program's operations depends on the platform:

- CPU: the threads of `/host:CPU`, each with the name of its instruction. Operations that share
  their work with other threads return at once; an event `end: NAME` marks their end.
- GPU: the lines `Stream #...` of `/device:GPU:N`, under the names of kernels; instruction and
  program are in their stats. Kernels of a CUDA graph have the graph there, but are themselves named
  after their instruction, unless they come from a library.
- TPU: the line `XLA Ops` of `/device:TPU:N`, beside `XLA Modules`, the runs of programs.

The reading of TPU traces follows the source and was not tried on a real trace.

Source: openxla/xla, xla/backends/profiler/{cpu,gpu} and xla/tsl/profiler/utils/xplane_schema.cc.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jax.profiler import ProfileData, ProfilePlane

from stillbox.profiling.hlo import UNKNOWN, Program, choose_programs, read_programs

_END = "end: "

Ends = dict[tuple[str, int], list[float]]
"""Moments of the end events of a CPU, by name and number."""


class Operation(NamedTuple):
    """A run of an operation on a device, in nanoseconds of the trace."""

    name: str
    """Name of its instruction, or of its kernel if the instruction is not known."""
    start: float
    end: float
    program: str = ""
    """The program of its instruction, such as `jit_step(7)`; empty for a transfer."""
    device: str = ""
    """The virtual devices of a CPU count as one: they share its threads."""
    replica: int = 0
    """The number of the virtual device."""


class HostEvent(NamedTuple):
    """An annotation of the host, in nanoseconds of the trace."""

    name: str
    start: float
    end: float
    thread: str
    step: int | None = None
    """The step that it marks, if any."""


class Trace(NamedTuple):
    """The events of a trace, sorted by their start."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    operations: tuple[Operation, ...]
    host: tuple[HostEvent, ...]
    programs: Mapping[str, Program]
    """The programs of the operations, as far as they are known."""


def read_trace(content: bytes, programs_beside: Sequence[bytes] = ()) -> Trace:
    """Reads a trace.

    Args:
        programs_beside: `HloProto`s of programs that the trace does not contain.

    Raises:
        IndexError: `content` is not an `XSpace`.
    """
    planes = {plane.name: plane for plane in ProfileData.from_serialized_xspace(content).planes}
    host = planes.get("/host:CPU")
    raw: list[tuple[Operation, int | None]]
    ends: Ends = {}
    prefixes = ("/device:GPU:", "/device:TPU:")
    accelerators = sorted(name for name in planes if name.startswith(prefixes))
    if accelerators:
        platform = accelerators[0].split(":")[1].lower()
        read = {"gpu": _gpu_operations, "tpu": _tpu_operations}[platform]
        raw = [(one, None) for name in accelerators for one in read(name, planes[name])]
    else:
        platform = "cpu"
        raw, ends = _cpu_operations(host)
    ran: dict[str, set[str]] = defaultdict(set)
    for one, _ in raw:
        ran[one.program].add(one.name)
    programs = read_programs(content, ran)
    lacking = {name: ran[name] for name in ran if name not in programs}
    programs |= choose_programs(programs_beside, lacking)
    named = [(_resolved(one, programs.get(one.program, UNKNOWN)), flow) for one, flow in raw]
    leaves = [
        (one, flow)
        for one, flow in named
        if not programs.get(one.program, UNKNOWN).contains_others(one.name)
    ]
    operations = list(_with_ends(leaves, ends, programs))
    return Trace(
        platform,
        tuple(sorted(operations, key=lambda one: one.start)),
        tuple(sorted(_host_events(host), key=lambda one: one.start)),
        programs,
    )


def _host_events(plane: ProfilePlane | None) -> list[HostEvent]:
    """Returns the annotations, without the runtime's own records of each of its tasks."""
    found = []
    for line in plane.lines if plane else ():
        for event in line.events:
            if event.duration_ns and not event.name.startswith(("Threadpool", _END)):
                stats = dict(event.stats)
                if "hlo_op" not in stats:
                    start, end = event.start_ns, event.start_ns + event.duration_ns
                    step = stats.get("step_num")
                    found.append(HostEvent(event.name, start, end, line.name, step))
    return found


def _gpu_operations(device: str, plane: ProfilePlane) -> Iterator[Operation]:
    for line in plane.lines:
        if not line.name.startswith("Stream #"):
            continue
        for event in line.events:
            stats = dict(event.stats)
            # Copies of memory and kernels of a CUDA graph have only their own names.
            own = "cuda_graph_id" in stats or event.name.startswith(("Memcpy", "Memset"))
            name = event.name if own else str(stats.get("hlo_op", event.name))
            start, end = event.start_ns, event.start_ns + event.duration_ns
            yield Operation(name, start, end, _program_of(stats), device)


def _tpu_operations(device: str, plane: ProfilePlane) -> Iterator[Operation]:
    lines = {line.name: list(line.events) for line in plane.lines}
    runs = sorted(lines.get("XLA Modules", ()), key=lambda run: run.start_ns)
    starts = [run.start_ns for run in runs]
    for event in lines.get("XLA Ops", ()):
        run = bisect_right(starts, event.start_ns) - 1
        name = event.name.partition(" = ")[0].lstrip("%")
        start, end = event.start_ns, event.start_ns + event.duration_ns
        yield Operation(name, start, end, runs[run].name if run >= 0 else "", device)


def _cpu_operations(plane: ProfilePlane | None) -> tuple[list[tuple[Operation, int | None]], Ends]:
    """Returns operations with the number of their end event, if any, and the end events."""
    found = []
    ends: Ends = defaultdict(list)
    for line in plane.lines if plane else ():
        for event in line.events:
            if event.name.startswith(_END):
                stats = dict(event.stats)
                ends[event.name.removeprefix(_END), stats.get("_c", 0)].append(event.start_ns)
            elif event.duration_ns and "hlo_op" in (stats := dict(event.stats)):
                start, end = event.start_ns, event.start_ns + event.duration_ns
                name, replica = str(stats["hlo_op"]), int(stats.get("device_ordinal", 0))
                operation = Operation(name, start, end, _program_of(stats), "cpu", replica)
                found.append((operation, stats.get("_p")))
    return found, {key: sorted(moments) for key, moments in ends.items()}


def _program_of(stats: Mapping[str, object]) -> str:
    if "hlo_module" not in stats:
        return ""
    return f"{stats['hlo_module']}({stats.get('program_id', '')})"


def _resolved(operation: Operation, program: Program) -> Operation:
    """Returns an operation under the name of its instruction instead of that of its kernel."""
    if operation.name in program.instructions:
        return operation
    return operation._replace(name=program.by_kernel.get(operation.name, operation.name))


def _with_ends(
    flowing: Sequence[tuple[Operation, int | None]], ends: Ends, programs: Mapping[str, Program]
) -> Iterator[Operation]:
    """Yields the operations of a CPU with their real ends.

    A thread that finishes the last piece of an operation runs the operations that waited for it
    before it reports the end. These begin earlier than that report, and bound the end.
    """
    starts: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for one in sorted((one for one, _ in flowing), key=lambda one: one.start):
        starts[one.program, one.name, one.replica].append(one.start)
    for one, flow in flowing:
        reported = _next(ends.get((one.name, flow or 0), []), one.start)
        program = programs.get(one.program)
        if reported is None or program is None or reported <= one.end:
            yield one
            continue
        read = (
            _next(starts[one.program, reader, one.replica], one.end)
            for reader in program.readers(one.name)
        )
        bounds = [moment for moment in read if moment is not None]
        yield one._replace(end=max(one.end, min((reported, *bounds))))


def _next(moments: list[float], after: float) -> float | None:
    at = bisect_left(moments, after)
    return moments[at] if at < len(moments) else None
