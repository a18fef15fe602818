"""What was wrong with the data: counted by reason, with the first places in full."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rich.table import Table
from rich.text import Text

from stillbox.errors import UserError

EXAMPLES_KEPT = 5

RecordPolicy = Literal["fail", "drop"]
"""A record, image or annotation file that cannot be used: stop, or leave it out and count it."""
BoxPolicy = Literal["fix", "drop", "fail"]
"""A box that cannot be used as it is: mend it if that is possible, drop it, or stop."""


class BadRecordError(ValueError):
    """A record, image or annotation file that cannot be used as a whole.

    Args:
        reason: a few words that are the same for every case; cases are counted by them.
        detail: what is special about this one.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


@dataclass
class Problem:
    """All cases of one kind."""

    reason: str
    """What is wrong, as `no area`."""
    action: str
    """What was done about it, as `box dropped`."""
    count: int = 0
    """How many cases."""
    examples: list[str] = field(default_factory=list)
    """The first cases: `file: record, object: detail`."""


class ProblemLog:
    """Collects problems from any thread."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}
        self._lock = threading.Lock()

    def add(
        self, reason: str, where: str, detail: str = "", *, action: str = "", count: int = 1
    ) -> None:
        """Counts one case.

        Args:
            reason: what is wrong, in words that all cases of its kind share.
            where: file, record, object.
            detail: what is special about this case.
            action: what was done about it.
            count: cases that this call stands for.
        """
        with self._lock:
            problem = self._problems.setdefault((reason, action), Problem(reason, action))
            problem.count += count
            if len(problem.examples) < EXAMPLES_KEPT:
                problem.examples.append(f"{where}: {detail}" if detail else where)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Takes over what another log has counted."""
        for problem in problems:
            with self._lock:
                key = (problem.reason, problem.action)
                own = self._problems.setdefault(key, Problem(*key))
                own.count += problem.count
                own.examples += problem.examples[: EXAMPLES_KEPT - len(own.examples)]

    def __iter__(self) -> Iterator[Problem]:
        """Yields the kinds of problem, the most frequent first."""
        with self._lock:
            problems = list(self._problems.values())
        return iter(sorted(problems, key=lambda problem: (-problem.count, problem.reason)))

    def __len__(self) -> int:
        """Returns the number of cases of all kinds."""
        return sum(problem.count for problem in self)

    def counts(self) -> dict[str, int]:
        """Returns how many cases there are of every reason."""
        counts: dict[str, int] = {}
        for problem in self:
            counts[problem.reason] = counts.get(problem.reason, 0) + problem.count
        return counts

    def to_list(self) -> list[dict[str, object]]:
        """Returns the problems as plain values, for JSON."""
        return [
            {"reason": p.reason, "action": p.action, "count": p.count, "examples": p.examples}
            for p in self
        ]

    def lines(self) -> list[str]:
        """Returns a line for each kind of problem, with its first case."""
        return [
            f"{p.count:,} x {p.reason}{f', {p.action}' if p.action else ''}: {p.examples[0]}"
            for p in self
        ]

    def table(self, title: str = "Problems") -> Table:
        """Returns a table of the problems for a terminal or a text file."""
        table = Table(title=title, title_justify="left")
        table.add_column("count", justify="right")
        table.add_column("what")
        table.add_column("outcome")
        table.add_column("first cases", overflow="fold")
        for problem in self:
            more = problem.count - len(problem.examples)
            cases = [*problem.examples, f"... and {more} more"] if more > 0 else problem.examples
            # Text: a path with brackets is no markup.
            table.add_row(
                str(problem.count), problem.reason, problem.action, Text("\n".join(cases))
            )
        return table


class Verdicts:
    """Applies both policies to what a converter finds, and keeps the record of it.

    Args:
        bad_records: for images and annotation files.
        bad_boxes: for single boxes.
    """

    def __init__(self, bad_records: RecordPolicy = "drop", bad_boxes: BoxPolicy = "fix") -> None:
        self.bad_records, self.bad_boxes = bad_records, bad_boxes
        self.problems = ProblemLog()

    def bad_record(self, reason: str, where: str, detail: str = "") -> None:
        """Leaves an image out.

        Raises:
            UserError: the policy is `fail`.
        """
        if self.bad_records == "fail":
            fix = "correct it, or leave such images out with --bad-records drop"
            raise UserError(f"{reason}: {detail}" if detail else reason, where=where, fix=fix)
        self.problems.add(reason, where, detail, action="image left out")

    def bad_box(
        self, reason: str, where: str, detail: str = "", *, action: str = "box dropped"
    ) -> None:
        """Drops a box, or whatever `action` says.

        Raises:
            UserError: the policy is `fail`.
        """
        if self.bad_boxes == "fail":
            fix = "correct it, or let such boxes be mended or dropped with --bad-boxes fix"
            raise UserError(f"{reason}: {detail}" if detail else reason, where=where, fix=fix)
        self.problems.add(reason, where, detail, action=action)
