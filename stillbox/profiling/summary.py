"""Where the time of a step goes: how operations share it, and when nothing runs."""

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from stillbox.profiling.costs import BACKGROUND, Classifier, Kind, kind_of_kernel
from stillbox.profiling.hlo import UNKNOWN
from stillbox.profiling.traces import HostEvent, Operation, Trace

SpanKey = TypeVar("SpanKey", bound=Hashable)
Span = tuple[float, float]
"""Start and end, in nanoseconds."""


class Work(NamedTuple, Generic[SpanKey]):
    """An activity and its time."""

    start: float
    """Nanoseconds."""
    end: float
    key: SpanKey
    """The key that its time is counted under."""
    background: bool = False
    """Whether it should run beside other work."""


def share_out(works: Iterable[Work[SpanKey]]) -> tuple[dict[SpanKey, float], dict[SpanKey, float]]:
    """Divides every moment evenly among the works that run in it.

    Background work counts only in the moments in which nothing else runs.

    Returns:
        Nanoseconds by key, which add up to the time in which anything ran; and those of background
        work that other work hides.
    """
    edges = [(work.start, 1, work) for work in works]
    edges += [(work.end, -1, work) for _, _, work in edges]
    edges.sort(key=lambda edge: edge[0])
    running: dict[bool, Counter[SpanKey]] = {False: Counter(), True: Counter()}
    spent: dict[SpanKey, float] = defaultdict(float)
    hidden: dict[SpanKey, float] = defaultdict(float)
    last = 0.0
    for now, change, work in edges:
        if now > last:
            front, behind = running[False], running[True]
            _divide(front or behind, now - last, spent)
            if front:
                _divide(behind, now - last, hidden)
            last = now
        counter = running[work.background]
        counter[work.key] += change
        if not counter[work.key]:
            del counter[work.key]
    return dict(spent), dict(hidden)


def _divide(running: Counter[SpanKey], time: float, spent: dict[SpanKey, float]) -> None:
    total = running.total()
    for key, several in running.items():
        spent[key] += time * several / total


def merged(spans: Iterable[Span]) -> list[Span]:
    """Returns the same time as spans that neither touch nor overlap, in order."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def within(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    """Returns the parts of merged spans between two moments."""
    first = max(bisect_right(spans, (start, start)) - 1, 0)
    found = []
    for low, high in spans[first:]:
        if low >= end:
            break
        if high > start:
            found.append((max(low, start), min(high, end)))
    return found


def without(start: float, end: float, spans: Sequence[Span]) -> list[Span]:
    """Returns the time between two moments that merged spans do not cover."""
    left, at = [], start
    for low, high in within(spans, start, end):
        if low > at:
            left.append((at, low))
        at = high
    return [*left, (at, end)] if at < end else left


def length(spans: Iterable[Span]) -> float:
    """Returns the sum of the lengths."""
    return sum(end - start for start, end in spans)


WAITING = "waiting for data"
STARTING = "starting the next step"
BUSY = "something else on the host"
# Events of the host that explain why the device is idle; the first match counts.
_CAUSES = {WAITING: ("wait for data",), STARTING: ("PjitFunction", "Execute", "CommonPjRt", "PjRt")}
_TOP = 10

Name = TypeVar("Name", bound=str)
Key = TypeVar("Key")
Spent = Mapping[tuple[Kind, str], float]
"""Time by kind and name of an operation."""


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """The cost of one operation of the program."""

    name: str
    """As in the program, or of a library's kernel."""
    kind: Kind
    place: str
    """Part of the detector; may be empty."""
    source: str
    """File and line; may be empty."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Where the time of a step goes. Times are seconds; parts are means over the steps.

    A step begins with its first operation on the device and ends where the next one begins; the
    last one of a trace has no such end and is left out, unless it is the only one. `kinds`, `idle`
    and `gaps` add up to the step. Mappings have the largest value first.
    """

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    devices: int
    """Devices in the trace; times are their mean."""
    program: str
    """The program that the steps are runs of."""
    steps: tuple[float, ...]
    """Each step's time, on the first device."""
    kinds: Mapping[Kind, float]
    """By kind of work."""
    hidden: Mapping[Kind, float]
    """Transfers and collectives that ran beside other work; no part of the step's time."""
    idle: float
    """Idle time between the first and the last operation of a step."""
    gaps: Mapping[str, float]
    """Idle time between two steps, by the activity of the host; not sorted."""
    places: Mapping[str, float]
    """By part of the detector, such as `backbone` and `head (gradient)`."""
    ops: tuple[OpCost, ...]
    """The most expensive operations."""
    memory: Mapping[str, int]
    """Bytes on a device that the compiler plans for the program, by use; not sorted."""

    @property
    def step(self) -> float:
        """The mean time of a step."""
        return sum(self.kinds.values()) + self.idle + self.gap

    @property
    def median(self) -> float:
        """The median time of a step."""
        return statistics.median(self.steps)

    @property
    def gap(self) -> float:
        """Idle time between two steps."""
        return sum(self.gaps.values())

    @property
    def outside_convolutions(self) -> float:
        """Share of a step that is not spent in convolutions, 0..1."""
        return 1 - self.kinds.get(Kind.CONVOLUTIONS, 0.0) / self.step if self.step else 0.0


def summarize(trace: Trace) -> Summary | None:
    """Returns the summary of a trace, None where no compiled program ran in it."""
    busy = _totals((one.program, one.end - one.start) for one in trace.operations if one.program)
    if not busy:
        return None
    program = max(busy, key=busy.__getitem__)
    compiled = trace.programs.get(program, UNKNOWN)
    classifier = Classifier(compiled, lowered=trace.platform == "cpu")
    times = {one.name: count for one, count in compiled.executed()}
    # Others have copies of memory only.
    devices = sorted({one.device for one in trace.operations if one.program == program})
    parts = [
        _DeviceTimes(
            [one for one in trace.operations if one.device == device], program, times, classifier
        )
        for device in devices
    ]
    spent = _mean([part.spent for part in parts])
    gaps = [_gaps_by_cause(part.gaps, part.count, trace.host) for part in parts]
    return Summary(
        platform=trace.platform,
        devices=max(len(devices), len({one.replica for one in trace.operations})),
        program=program.partition("(")[0],
        steps=tuple(time / 1e9 for time in parts[0].steps),
        kinds=_by_kind(spent),
        hidden=_by_kind(_mean([part.hidden for part in parts])),
        idle=_mean([{"": part.idle} for part in parts])[""],
        gaps=_mean(gaps),
        places=_by_place(spent, classifier),
        ops=_most_expensive(spent, classifier),
        memory=compiled.memory,
    )


class _DeviceTimes:
    """Times of one device, in nanoseconds of a step; `steps` and `gaps` are those of each step.

    Args:
        operations: all operations of the device.
        program: name of the program that the steps are runs of.
        times: executions of each operation in a run, by name; 1 if absent.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        program: str,
        times: Mapping[str, int],
        classifier: Classifier,
    ) -> None:
        @cache
        def kind_of(name: str, owner: str) -> Kind:
            by_kernel = kind_of_kernel(name)
            if by_kernel is Kind.INFEED or not owner:
                return by_kernel
            return classifier.kind(name) if owner == program else Kind.OTHER

        windows = _windows([one for one in operations if one.program == program], times)
        starts = [start for start, _ in windows]
        first, last = starts[0], starts[-1] if len(starts) > 1 else windows[0][1]
        self.count = max(len(starts) - 1, 1)
        self.steps = [b - a for a, b in pairwise(starts)] or [last - first]
        works = [
            Work(max(one.start, first), min(one.end, last), (kind, one.name), kind in BACKGROUND)
            for one in operations
            if one.end > first and one.start < last
            for kind in [kind_of(one.name, one.program)]
        ]
        self.spent, self.hidden = (
            {key: time / self.count for key, time in times.items()} for times in share_out(works)
        )
        busy = merged((work.start, work.end) for work in works)
        self.gaps: list[Span] = []
        for (_, end), (start, _) in pairwise(windows):
            self.gaps += without(end, start, busy) if end < start else []
        self.idle = (length(without(first, last, busy)) - length(self.gaps)) / self.count


def _windows(operations: Sequence[Operation], times: Mapping[str, int]) -> list[Span]:
    """Returns first start and last end of each run of the program that the operations are of.

    Runs follow each other, because each needs the results of the one before. Most operations run a
    known number of times in each of them on each replica, and so count them; a trace that begins or
    ends within a run, or loops of unknown length, make others differ.

    Args:
        operations: of one device.
        times: executions of each operation in a run, by name; 1 if absent.
    """
    moments: dict[str, list[Operation]] = defaultdict(list)
    for one in operations:
        moments[one.name].append(one)
    counts = {name: len(found) / times.get(name, 1) for name, found in moments.items()}
    ((count, _),) = Counter(counts.values()).most_common(1)
    replicas = len({one.replica for one in operations})
    runs = max(int(count) // replicas, 1)
    windows = [(float("inf"), 0.0)] * runs
    for name, found in moments.items():
        if counts[name] != count:
            continue
        for number, one in enumerate(sorted(found, key=lambda one: one.start)):
            run = number * runs // len(found)
            start, end = windows[run]
            windows[run] = (min(start, one.start), max(end, one.end))
    return windows


def _gaps_by_cause(gaps: Sequence[Span], steps: int, host: Sequence[HostEvent]) -> dict[str, float]:
    """Returns nanoseconds of a step's gap by what the thread that starts the steps did in it."""
    threads = {one.thread for one in host if one.step is not None}
    found: dict[str, float] = {}
    left = list(gaps)
    for cause, names in _CAUSES.items():
        spans = merged(
            (one.start, one.end)
            for one in host
            if one.thread in threads and one.name.startswith(names)
        )
        found[cause] = sum(length(within(spans, *gap)) for gap in left)
        left = [rest for gap in left for rest in without(*gap, spans)]
    found[BUSY] = length(left)
    return {cause: time / steps for cause, time in found.items() if time}


def _mean(dicts: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """Returns the mean of nanoseconds by key, in seconds; absent ones are 0."""
    scale = len(dicts) * 1e9
    return _totals((key, time / scale) for one in dicts for key, time in one.items())


def _totals(times: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    total: dict[Key, float] = defaultdict(float)
    for key, time in times:
        total[key] += time
    return dict(total)


def _largest_first(times: Mapping[Name, float]) -> dict[Name, float]:
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _by_kind(spent: Spent) -> dict[Kind, float]:
    return _largest_first(_totals((kind, seconds) for (kind, _), seconds in spent.items()))


def _by_place(spent: Spent, classifier: Classifier) -> dict[str, float]:
    def outermost(name: str) -> str:
        place = classifier.place(name)
        return str(place._replace(scopes=place.scopes[:1])) or "not known"

    return _largest_first(_totals((outermost(name), time) for (_, name), time in spent.items()))


def _most_expensive(spent: Spent, classifier: Classifier) -> tuple[OpCost, ...]:
    return tuple(
        OpCost(
            name=name,
            kind=kind,
            place=str(classifier.place(name)),
            source=classifier.source(name),
            seconds=seconds,
        )
        for (kind, name), seconds in sorted(spent.items(), key=lambda item: -item[1])[:_TOP]
    )
