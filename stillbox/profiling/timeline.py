"""Arithmetic of spans of time: how works share it, and when nothing runs."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Span = tuple[float, float]
"""Start and end, in nanoseconds."""


class Work(NamedTuple, Generic[Key]):
    """Something that takes time."""

    start: float
    """Nanoseconds."""
    end: float
    key: Key
    """What its time is counted for."""
    background: bool = False
    """Whether it should run beside other work."""


def share_out(works: Iterable[Work[Key]]) -> tuple[dict[Key, float], dict[Key, float]]:
    """Divides every moment evenly among the works that run in it.

    Background work has the moments in which nothing else runs.

    Returns:
        Nanoseconds by key, which add up to the time in which anything ran; and those of background
        work that other work hides.
    """
    edges = [(work.start, 1, work) for work in works]
    edges += [(work.end, -1, work) for _, _, work in edges]
    edges.sort(key=lambda edge: edge[0])
    running: dict[bool, Counter[Key]] = {False: Counter(), True: Counter()}
    spent: dict[Key, float] = defaultdict(float)
    hidden: dict[Key, float] = defaultdict(float)
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


def _divide(running: Counter[Key], time: float, spent: dict[Key, float]) -> None:
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
    """Returns what merged spans leave of the time between two moments."""
    left, at = [], start
    for low, high in within(spans, start, end):
        if low > at:
            left.append((at, low))
        at = high
    return [*left, (at, end)] if at < end else left


def length(spans: Iterable[Span]) -> float:
    """Returns the sum of the lengths."""
    return sum(end - start for start, end in spans)
