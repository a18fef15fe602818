"""Problems of the data, counted by reason, with the first cases in full."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from stillbox.errors import UserError
from stillbox.printing import printable_line
from stillbox.references import Parameter

_EXAMPLES_KEPT = 5

RecordPolicy = Literal["fail", "drop"]
"""A record, image or annotation file that cannot be used: stop, or leave it out and count it."""
BoxPolicy = Literal["fix", "drop", "fail"]
"""A box that cannot be used as it is: fix it if possible, drop it, or stop."""


class BadRecordError(ValueError):
    """A record, image or annotation file that cannot be used; the reason names the kind of case."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(with_detail(reason, detail))


@dataclass
class Problem:
    """All cases of one kind."""

    reason: str
    """As `no area`."""
    action: str
    """As `box dropped`."""
    count: int = 0
    examples: list[str] = field(default_factory=list)
    """The first cases: `file: record, object: detail`."""

    def __str__(self) -> str:
        """Returns count, reason and action, as `7 x no area, box dropped`."""
        return f"{self.count:,} x {self.reason}{f', {self.action}' if self.action else ''}"


def one_case(reason: str, where: str, detail: str = "", *, action: str = "") -> Problem:
    """Returns one case of a reason, at `where` (file, record, object), and the action taken."""
    return Problem(reason, action, 1, [printable_line(with_detail(where, detail))])


class ProblemLog:
    """Collects problems from any thread."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}
        self._lock = threading.Lock()

    def add(self, reason: str, where: str, detail: str = "", *, action: str = "") -> None:
        """Counts one case of a reason, at `where` (file, record, object), and the action taken."""
        self.extend([one_case(reason, where, detail, action=action)])

    def extend(self, problems: Iterable[Problem]) -> None:
        """Adds the cases that another log has counted."""
        for problem in problems:
            key = problem.reason, problem.action
            with self._lock:
                kept = self._problems.setdefault(key, Problem(*key))
                kept.count += problem.count
                kept.examples += problem.examples[: _EXAMPLES_KEPT - len(kept.examples)]

    def has_enough(self, reason: str) -> bool:
        """Whether further cases of a reason are counted only."""
        return any(p.reason == reason and len(p.examples) >= _EXAMPLES_KEPT for p in self)

    def __iter__(self) -> Iterator[Problem]:
        """Yields the kinds of problem, the most frequent first."""
        with self._lock:
            problems = list(self._problems.values())
        return iter(sorted(problems, key=lambda problem: (-problem.count, problem.reason)))

    def lines(self) -> list[str]:
        """Returns a line for each kind of problem, with its first case."""
        return [f"{problem}: {problem.examples[0]}" for problem in self]


class ConversionLog(ProblemLog):
    """The problems of a conversion, which stop it if their policy is `fail`."""

    def __init__(self, bad_records: RecordPolicy = "drop", bad_boxes: BoxPolicy = "fix") -> None:
        super().__init__()
        self.bad_records, self.bad_boxes = bad_records, bad_boxes

    def bad_record(self, reason: str, where: str, detail: str = "") -> None:
        """Counts an image that is left out.

        Raises:
            UserError: the policy is `fail`.
        """
        if self.bad_records == "fail":
            fix = f"correct it, or leave such images out with {Parameter('bad_records', 'drop')}"
            raise UserError(with_detail(reason, detail), where=where, fix=fix)
        self.add(reason, where, detail, action="image left out")

    def bad_box(
        self, reason: str, where: str, detail: str = "", *, action: str = "box dropped"
    ) -> None:
        """Counts a box that is dropped, or treated as `action` describes.

        Raises:
            UserError: the policy is `fail`.
        """
        if self.bad_boxes == "fail":
            fix = (
                "correct it, or let such boxes be fixed or dropped with "
                f"{Parameter('bad_boxes', 'fix')}"
            )
            raise UserError(with_detail(reason, detail), where=where, fix=fix)
        self.add(reason, where, detail, action=action)


def with_detail(text: str, detail: str) -> str:
    """Returns `text: detail`, or the text alone if there is no detail."""
    return f"{text}: {detail}" if detail else text
