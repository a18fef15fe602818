"""What ran when: the events of a trace, on a CPU, a GPU or a TPU.

Where the operations of a compiled program stand differs from platform to platform:

- CPU: on the threads of `/host:CPU`, each with the name of its instruction. Operations that share
  their work with other threads return at once; an event `end: NAME` says that they are done.
- GPU: on the lines `Stream #...` of `/device:GPU:N`, under the names of kernels; instruction and
  program are beside them. Kernels of a CUDA graph only name the graph, but are themselves named
  after their instruction, unless they come from a library.
- TPU: on the line `XLA Ops` of `/device:TPU:N`, beside `XLA Modules`, the runs of programs.

CPU traces are read as they come; of the others no machine was at hand, and their form is that of
the source.

Source: openxla/xla, xla/backends/profiler/{cpu,gpu} and xla/tsl/profiler/utils/xplane_schema.cc.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from stillbox.profiling.hlo import Program
from stillbox.profiling.programs import choose_programs, read_programs

_END = "end: "

Ends = dict[tuple[str, int], list[float]]
"""When operations of a CPU reported that they are done, by name and number."""


class Operation(NamedTuple):
    """Something that ran on a device, in nanoseconds of the trace."""

    name: str
    """Of its instruction, or of its kernel where that is not known."""
    start: float
    """When it began."""
    end: float
    """When it was done."""
    program: str = ""
    """Whose instruction it is, such as `jit_step(7)`; empty for a transfer."""
    device: str = ""
    """What it ran on. The virtual devices of a CPU are one: they share its threads."""
    replica: int = 0
    """Which of the devices that are one."""


class HostEvent(NamedTuple):
    """Something that the host did, in nanoseconds of the trace."""

    name: str
    """Its annotation."""
    start: float
    """When it began."""
    end: float
    """When it was over."""
    thread: str
    """Where it ran."""
    step: int | None = None
    """The step that it marks; None: it marks none."""


class Trace(NamedTuple):
    """Everything that happened while a trace was taken, each list by its start."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    operations: tuple[Operation, ...]
    """On the devices."""
    host: tuple[HostEvent, ...]
    """On the host."""
    programs: Mapping[str, Program]
    """The programs whose operations these are, as far as they are known."""


def trace_of(content: bytes, programs_beside: Sequence[bytes] = ()) -> Trace:
    """Reads a trace.

    Args:
        content: a serialised `XSpace`, which is what an `.xplane.pb` holds.
        programs_beside: `HloProto`s, for programs that the trace does not hold itself.

    Raises:
        IndexError: these are no such bytes.
    """
    planes = {plane.name: plane for plane in ProfileData.from_serialized_xspace(content).planes}
    host = planes.get("/host:CPU")
    ends: Ends = {}
    platform = next((key for key in _READERS if any(map(_is_of(key), planes))), "cpu")
    if platform == "cpu":
        raw, ends = _cpu_operations(host)
    else:
        mine = sorted(filter(_is_of(platform), planes))
        read = _READERS[platform]
        raw = [(one, None) for name in mine for one in read(name, planes[name])]
    ran: dict[str, set[str]] = defaultdict(set)
    for one, _ in raw:
        ran[one.program].add(one.name)
    programs = read_programs(content, ran)
    lacking = {name: ran[name] for name in ran if name not in programs}
    programs |= choose_programs(programs_beside, lacking)
    named = [(_resolved(one, programs.get(one.program)), flow) for one, flow in raw]
    leaves = [(one, flow) for one, flow in named if not _holds_others(one, programs)]
    operations = list(_with_ends(leaves, ends, programs))
    return Trace(
        platform,
        tuple(sorted(operations, key=lambda one: one.start)),
        tuple(sorted(_host_events(host), key=lambda one: one.start)),
        programs,
    )


def _is_of(platform: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(f"/device:{platform.upper()}:")


def _host_events(plane: Any) -> list[HostEvent]:  # noqa: ANN401
    """Returns what annotations say; what the runtime records of each of its tasks says nothing."""
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


def _gpu_operations(device: str, plane: Any) -> Iterator[Operation]:  # noqa: ANN401
    for line in plane.lines:
        if not line.name.startswith("Stream #"):
            continue
        for event in line.events:
            stats = dict(event.stats)
            # Copies of memory and kernels of a CUDA graph are known by their own names only.
            own = "cuda_graph_id" in stats or event.name.startswith(("Memcpy", "Memset"))
            name = event.name if own else str(stats.get("hlo_op", event.name))
            start, end = event.start_ns, event.start_ns + event.duration_ns
            yield Operation(name, start, end, _program_of(stats), device)


def _tpu_operations(device: str, plane: Any) -> Iterator[Operation]:  # noqa: ANN401
    lines = {line.name: list(line.events) for line in plane.lines}
    runs = sorted(lines.get("XLA Modules", ()), key=lambda run: run.start_ns)
    starts = [run.start_ns for run in runs]
    for event in lines.get("XLA Ops", ()):
        run = bisect_right(starts, event.start_ns) - 1
        name = event.name.partition(" = ")[0].lstrip("%")
        start, end = event.start_ns, event.start_ns + event.duration_ns
        yield Operation(name, start, end, runs[run].name if run >= 0 else "", device)


_READERS = {"gpu": _gpu_operations, "tpu": _tpu_operations}


def _cpu_operations(plane: Any) -> tuple[list[tuple[Operation, int | None]], Ends]:  # noqa: ANN401
    """Returns operations with the number that binds each to its end, and the ends."""
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


def _program_of(stats: Mapping[str, Any]) -> str:
    if "hlo_module" not in stats:
        return ""
    return f"{stats['hlo_module']}({stats.get('program_id', '')})"


def _resolved(operation: Operation, program: Program | None) -> Operation:
    """Gives an operation the name of its instruction, where only that of its kernel is known."""
    if program is None or operation.name in program.instructions:
        return operation
    return operation._replace(name=program.by_kernel.get(operation.name, operation.name))


def _holds_others(operation: Operation, programs: Mapping[str, Program]) -> bool:
    program = programs.get(operation.program)
    known = program is not None and operation.name in program.instructions
    return bool(known and program and program.contains_others(operation.name))


def _with_ends(
    flowing: Sequence[tuple[Operation, int | None]],
    ends: Ends,
    programs: Mapping[str, Program],
) -> Iterator[Operation]:
    """Yields the operations of a CPU with their real ends.

    A thread that finishes the last piece of an operation goes on with what waited for it before it
    reports the end: whatever reads the result begins earlier than that, and bounds it.
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
