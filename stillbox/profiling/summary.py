"""Where the time of a step goes, in numbers."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from stillbox.profiling.kinds import (
    BACKGROUND,
    NOWHERE,
    Classifier,
    Kind,
    classifiers,
    kind_of_kernel,
)
from stillbox.profiling.timeline import Span, Work, length, merged, share_out, within, without
from stillbox.profiling.traces import HostEvent, Operation, Trace

WAITING = "waiting for data"
STARTING = "starting the next step"
BUSY = "something else on the host"
# What of the host's events explains that the device has nothing to do; the first that fits counts.
_CAUSES = {WAITING: ("wait for data",), STARTING: ("PjitFunction", "Execute", "CommonPjRt", "PjRt")}
_TOP = 10

Name = TypeVar("Name", bound=str)
Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Expense:
    """What one operation of the program costs."""

    name: str
    """As in the program, or of a library's kernel."""
    kind: Kind
    """What sort of work it is."""
    place: str
    """Where in the detector it belongs; may be empty."""
    source: str
    """File and line; may be empty."""
    seconds: float
    """Of a step."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Where the time of a step goes. Times are seconds; parts are means over the steps.

    A step begins with its first operation on the device and ends where the next one begins; the
    last one of a trace has no such end and is left out, unless it is the only one. `kinds`, `idle`
    and the `gaps` together are the step.
    """

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    devices: int
    """How many devices the trace shows; times are the mean of them."""
    program: str
    """The program that the steps are runs of."""
    steps: tuple[float, ...]
    """Each step's time, on the first device."""
    kinds: Mapping[Kind, float]
    """By sort of work, what is largest first."""
    hidden: Mapping[Kind, float]
    """Transfers and collectives that ran while other work did; no part of the step's time."""
    idle: float
    """Nothing ran, between the first and the last operation of a step."""
    gaps: Mapping[str, float]
    """Nothing ran between two steps, by what the host did meanwhile."""
    places: Mapping[str, float]
    """By part of the detector, such as `backbone` and `head (gradient)`, what is largest first."""
    expenses: tuple[Expense, ...]
    """The most expensive operations."""
    memory: Mapping[str, int]
    """Bytes on a device that the compiler gives the program, by use."""

    @property
    def step(self) -> float:
        """The time of a step: of all together, the mean."""
        return sum(self.kinds.values()) + self.idle + sum(self.gaps.values())

    @property
    def median(self) -> float:
        """The median of the steps."""
        return statistics.median(self.steps)

    @property
    def gap(self) -> float:
        """Nothing to do between two steps."""
        return sum(self.gaps.values())

    @property
    def outside_convolutions(self) -> float:
        """Share of a step that is not spent in convolutions, 0..1."""
        return 1 - self.kinds.get(Kind.CONVOLUTIONS, 0.0) / self.step if self.step else 0.0


def summarize(trace: Trace) -> Summary | None:
    """Returns the summary of a trace, None where no compiled program ran in it."""
    spent_by: Counter[str] = Counter()
    for one in trace.operations:
        if one.program:
            spent_by[one.program] += round(one.end - one.start)
    if not spent_by:
        return None
    ((program, _),) = spent_by.most_common(1)
    known = classifiers(trace.programs, trace.platform)
    devices = sorted({one.device for one in trace.operations})
    parts = [
        _Device([one for one in trace.operations if one.device == device], program, known)
        for device in devices
    ]
    main = known.get(program)
    host = _Host(trace.host)
    return Summary(
        platform=trace.platform,
        devices=max(len(devices), len({one.replica for one in trace.operations})),
        program=program.partition("(")[0],
        steps=tuple(time / 1e9 for time in parts[0].steps),
        kinds=_largest_first(_mean([part.kinds for part in parts])),
        hidden=_largest_first(_mean([part.hidden for part in parts])),
        idle=_mean([{"": part.idle} for part in parts])[""],
        gaps=_mean([host.causes(part.gaps, part.count) for part in parts]),
        places=_places(_mean([part.by_name for part in parts]), main),
        expenses=_expenses(_mean([part.by_name for part in parts]), main),
        memory=trace.programs[program].memory if program in trace.programs else {},
    )


class _Device:
    """What ran on one device; times are nanoseconds of a step, but `steps` and `gaps` as they are.

    Args:
        operations: of this device.
        program: whose runs the steps are.
        known: classifiers of programs.
    """

    def __init__(
        self, operations: Sequence[Operation], program: str, known: Mapping[str, Classifier]
    ) -> None:
        windows = _windows([one for one in operations if one.program == program])
        starts = [start for start, _ in windows]
        first, last = starts[0], starts[-1] if len(starts) > 1 else windows[0][1]
        self.count = max(len(starts) - 1, 1)
        self.steps = [b - a for a, b in pairwise(starts)] or [last - first]
        kind_of = _KindOf(program, known)
        works = [
            Work(max(one.start, first), min(one.end, last), (kind, one.name), kind in BACKGROUND)
            for one in operations
            if one.end > first and one.start < last
            for kind in [kind_of(one)]
        ]
        spent, hidden = share_out(works)
        self.kinds = self._by_kind(spent)
        self.hidden = self._by_kind(hidden)
        self.by_name = {key: time / self.count for key, time in spent.items()}
        busy = merged((work.start, work.end) for work in works)
        self.gaps: list[Span] = []
        for (_, end), (start, _) in pairwise(windows):
            self.gaps += without(end, start, busy) if end < start else []
        self.idle = (length(without(first, last, busy)) - length(self.gaps)) / self.count

    def _by_kind(self, spent: Mapping[tuple[Kind, str], float]) -> dict[Kind, float]:
        kinds: dict[Kind, float] = defaultdict(float)
        for (kind, _), time in spent.items():
            kinds[kind] += time / self.count
        return dict(kinds)


class _KindOf:
    """Says what sort of work an operation is."""

    def __init__(self, program: str, known: Mapping[str, Classifier]) -> None:
        self._program, self._known = program, known
        self._found: dict[tuple[str, str], Kind] = {}

    def __call__(self, one: Operation) -> Kind:
        key = one.program, one.name
        if key not in self._found:
            self._found[key] = self._find(one)
        return self._found[key]

    def _find(self, one: Operation) -> Kind:
        by_kernel = kind_of_kernel(one.name)
        if by_kernel is Kind.INFEED or not one.program:
            return by_kernel
        if one.program != self._program:
            return Kind.OTHER
        classifier = self._known.get(one.program)
        return classifier.kind(one.name) if classifier else by_kernel


def _windows(operations: Sequence[Operation]) -> list[Span]:
    """Returns first start and last end of each run of the program that the operations are of.

    Runs follow each other: each needs what the one before returns. An operation that runs once in
    each of them, on each replica, so counts them, and most of them do.
    """
    moments: dict[str, list[Operation]] = defaultdict(list)
    for one in operations:
        moments[one.name].append(one)
    counts = Counter(len(found) for found in moments.values())
    # The trace may begin or end within a run, and loops run often: most operations know better.
    ((times, _),) = counts.most_common(1)
    replicas = len({one.replica for one in operations})
    runs = max(times // replicas, 1)
    windows = [(float("inf"), 0.0)] * runs
    for found in moments.values():
        if len(found) != times:
            continue
        found.sort(key=lambda one: one.start)
        for number, one in enumerate(found):
            run = number * runs // times
            start, end = windows[run]
            windows[run] = (min(start, one.start), max(end, one.end))
    return windows


class _Host:
    """What the thread that starts the steps did, and when.

    Args:
        events: of all threads.
    """

    def __init__(self, events: Sequence[HostEvent]) -> None:
        threads = {one.thread for one in events if one.step is not None}
        self._spans = {
            cause: merged(
                (one.start, one.end)
                for one in events
                if one.thread in threads and one.name.startswith(names)
            )
            for cause, names in _CAUSES.items()
        }

    def causes(self, gaps: Sequence[Span], steps: int) -> dict[str, float]:
        """Returns the nanoseconds of a step's gap by what the host did in it."""
        found: dict[str, float] = {}
        left = list(gaps)
        for cause, spans in self._spans.items():
            found[cause] = sum(length(within(spans, *gap)) for gap in left)
            left = [rest for gap in left for rest in without(*gap, spans)]
        found[BUSY] = length(left)
        return {cause: time / steps for cause, time in found.items() if time}


def _mean(dicts: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """Returns the mean by key, in seconds; what one lacks is 0 there."""
    total: dict[Key, float] = defaultdict(float)
    for one in dicts:
        for key, time in one.items():
            total[key] += time / len(dicts) / 1e9
    return dict(total)


def _largest_first(times: Mapping[Name, float]) -> dict[Name, float]:
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _places(
    spent: Mapping[tuple[Kind, str], float], classifier: Classifier | None
) -> dict[str, float]:
    """Returns the seconds of each part of the detector, there and back."""
    found: dict[str, float] = defaultdict(float)
    for (_, name), seconds in spent.items():
        place = classifier.place(name) if classifier else NOWHERE
        found[str(place._replace(scopes=place.scopes[:1])) or "not known"] += seconds
    return _largest_first(found)


def _expenses(
    spent: Mapping[tuple[Kind, str], float], classifier: Classifier | None
) -> tuple[Expense, ...]:
    dearest = sorted(spent.items(), key=lambda item: -item[1])[:_TOP]
    return tuple(
        Expense(
            name=name,
            kind=kind,
            place=str(classifier.place(name)) if classifier else "",
            source=classifier.source(name) if classifier else "",
            seconds=seconds,
        )
        for (kind, name), seconds in dearest
    )
